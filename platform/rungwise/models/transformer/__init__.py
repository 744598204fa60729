"""The Transformer block that families share: attention, options of a layer, positions, bodies.

Families choose options in `layer.py`; they do not subclass the block.
"""
