"""The seven kinds of task, a file each: encoding, decoding, metrics and baselines.

`kind.py` says what a kind answers; `examples.py` and `items.py` are what all kinds share. A new kind
is a new file and a line in `tasks/interface.py`.
"""
