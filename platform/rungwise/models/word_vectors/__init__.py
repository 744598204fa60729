"""Families of vectors for words (word2vec, GloVe) and documents (paragraph vectors).

A family with a table of words derives from `vector_family.VectorFamily`. Compiled loops are
in files of their own, because numba is slow to import.
"""
