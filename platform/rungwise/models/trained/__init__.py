"""Capabilities of trained models: the protocols of `capabilities.py`, and wrappers with them.

Code above `models` uses the protocols, never a family.
"""
