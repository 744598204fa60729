"""Variants compared on the test split of tasks: seeds, intervals, errors, claims.

Selection uses other seeds than the scores reported here.
"""
