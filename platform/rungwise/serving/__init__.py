"""Trained models in use: predictions, the MLflow registry, export to Hugging Face's format."""
