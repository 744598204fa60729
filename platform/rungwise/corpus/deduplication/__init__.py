"""Deduplication: exact copies, near-duplicates and repeated paragraphs of the whole corpus.

Only keys (digests, signatures) are compared, one partition of them at a time. The outcome must not
depend on the order of keys or the number of partitions.
"""
