"""Families of vectors for words and documents."""
