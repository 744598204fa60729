"""Downstream tasks: their labelled data, encoding, decoding and metrics.

kinds/ encodes and decodes, formats/ reads files, data/ splits them, scoring/ judges predictions.
`interface.py` is what code above uses; `config.py` is the block of a recipe.
"""
