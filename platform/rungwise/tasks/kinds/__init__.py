"""The seven kinds of task: their examples, how they become rows, how logits become answers.

`examples.py` and `items.py` define what every kind shares; a kind is one more file.
"""
