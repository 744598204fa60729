"""The verbs of the command line, one a file.

Each has `add`, which declares its arguments, and the command itself. The help loads them all, so
they import what they need inside the command.
"""
