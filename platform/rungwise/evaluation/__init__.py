"""Evaluation: variants over new seeds, and pretrained models on held-out text.

suites/ measures one model, comparison/ sets variants and rungs side by side with what suites
measured, page/ shows one model; statistics.py has the intervals of all.
"""
