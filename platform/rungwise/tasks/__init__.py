"""Downstream tasks: labelled examples, and the kinds that encode, decode and score them.

kinds/ has a file for each kind, formats/ reads files, data/ splits them, scoring/ has metrics.
Code above uses `interface.py`, the kinds by name; `config.py` is the block of a recipe.
"""
