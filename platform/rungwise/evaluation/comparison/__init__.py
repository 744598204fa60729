"""Variants compared on the test split of tasks: seeds, intervals, errors, claims."""
