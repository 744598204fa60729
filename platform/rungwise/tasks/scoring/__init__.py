"""Metrics, trivial baselines, and the rules of published scorers.

`metrics.py` works on sums over examples, for the bootstrap; `scores.py` lists all metrics of a set.
"""
