"""Evaluation: variants over new seeds, and pretrained models on held-out text.

suites/ measures one model, comparison/ sets variants side by side, page/ shows one model.
"""
