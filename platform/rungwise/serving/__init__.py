"""Trained models in use: predictions, the MLflow registry, exchange with Hugging Face."""
