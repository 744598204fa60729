"""The verbs of the command line: `add` of each file declares its arguments.

`--help` imports every file, so heavy modules are imported inside the commands.
"""
