"""Evaluations that need no labels from the user, one per file; config.py lists them."""
