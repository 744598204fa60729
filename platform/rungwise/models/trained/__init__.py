"""What a trained model can be asked: protocols in `capabilities.py`, and the wrappers that offer them.

Code above `models` uses the protocols, never a family.
"""
