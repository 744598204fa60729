"""Downstream tasks: labelled data made or read, and what is measured on it."""
