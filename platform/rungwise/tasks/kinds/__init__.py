"""The kinds of task, a file each. A new one is a file and a line in `tasks/interface.py`."""
