"""Metrics as sums over examples, and how people read a metric."""
