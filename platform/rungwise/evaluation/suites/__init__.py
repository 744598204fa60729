"""Evaluations that need no labels from the user, one per file; config.py lists them.

measure.py is the stage that runs them; base.py says what a suite is, items.py what it returns.
"""
