"""Variants compared on the test split of tasks: seeds, intervals, errors, ensembles, claims.

Selection uses other seeds than the scores reported here.
"""
