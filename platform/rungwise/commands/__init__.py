"""The verbs of the command line: `add` of each file declares its arguments."""
