"""Evaluation of fine-tuned variants over new seeds, and of pretrained models on held-out text."""
