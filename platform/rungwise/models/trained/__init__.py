"""What a trained model can do: the protocols of `capabilities.py`, and wrappers that offer them.

Code above `models` uses the protocols, never a family.
"""
