"""Evaluations without labels of the user's own, one a file; config.py names them in one union."""
