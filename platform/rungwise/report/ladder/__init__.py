"""The page of a ladder: its rungs side by side (rungs.py), and verdicts on the claims about them.

rows.py has the rows of its tables, *_plots.py its pictures; page.py is the stage.
"""
