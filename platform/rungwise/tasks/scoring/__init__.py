"""Metrics as sums over examples, the rules of published scorers, and how people read a metric.

The kinds say which metrics they have; tests compare them with the usual libraries.
"""
