"""The page of a ladder: its rungs side by side by what their suites bring (rungs.py), their ranking
and picture, and verdicts on the claims about them; page.py is the stage.
"""
