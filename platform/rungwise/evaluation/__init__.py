"""Evaluation: variants over new seeds, and pretrained models on held-out text."""
