"""The model families by gradient and by counts, one file each, with what only one family needs.

A family is a config derived from `models.family.Family`; `models/config.py` lists them all.
"""
