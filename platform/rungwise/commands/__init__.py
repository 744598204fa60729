"""The verbs of the command line, one per file: `add` declares the arguments, then the command.

`--help` imports every file, so heavy modules are imported inside the commands.
"""
