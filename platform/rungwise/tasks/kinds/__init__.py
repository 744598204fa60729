"""The seven kinds of task, a file each: encoding, decoding, metrics and baselines.

`kind.py` says what a kind answers; all share `examples.py` and `items.py`. A new kind
is a new file and a line in `tasks/interface.py`.
"""
