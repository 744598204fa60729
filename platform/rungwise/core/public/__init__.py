"""Public data sets that recipes name: where they are, and how a file is made of them.

sets.yaml ──> sets.py ──> fetch.py (downloads, checked, then a rule) ──> files where recipes look
"""
