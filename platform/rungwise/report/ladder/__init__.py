"""The page of a ladder: its rungs side by side, and verdicts on the claims about them."""
