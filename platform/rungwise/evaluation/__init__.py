"""Evaluation: scores on new seeds with intervals, and pretrained models on held-out text."""
