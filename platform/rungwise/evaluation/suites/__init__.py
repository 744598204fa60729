"""Evaluations that need no labels from the user; measure.py is the stage that runs them."""
