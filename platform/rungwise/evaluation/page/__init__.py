"""What a page shows of one model: continuations, filled blanks, neighbours, surprise at a passage.

All of it is about held-out text.
"""
