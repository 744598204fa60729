"""Labelled examples as a task uses them: files, splits, budgets, lengths, noise, unlabelled input.

Nothing here knows how a model reads them.
"""
