"""Stages and their artifacts: records, digests, leases, summaries, and the plan of a rebuild.

A stage is a plain function in `stage.py`'s terms; an artifact without a record is not finished.
"""
