"""Examples of one model on its page: continuations, filled blanks, neighbours, surprise.

All of it is about held-out text.
"""
