"""The page of a ladder: its rungs side by side, and what became of the claims about them."""
