"""Capabilities of trained models, and the wrappers that have them."""
