"""Trained models in use: predictions, the MLflow registry, models in Hugging Face's format."""
