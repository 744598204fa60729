"""The kinds of task. A new one is a file here and a name in `tasks/interface.py`."""
