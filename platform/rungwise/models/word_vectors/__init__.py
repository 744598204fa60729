"""Families of static word vectors, word2vec and GloVe, with their compiled loops.

Both derive from `vector_family.VectorFamily`. Kernels are apart, because numba is slow to import.
"""
