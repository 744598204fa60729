"""The verbs of the command line, one a file.

Each has `add`, which declares its arguments, and the command itself. The help loads them all, so
what is heavy is imported inside the command.
"""
