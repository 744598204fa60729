"""Examples of one model on its page: continuations, filled blanks, neighbours.

All of it is about held-out text.
"""
