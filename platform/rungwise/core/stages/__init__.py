"""Stages and their artifacts: context, records, digests, leases, summaries, the plan of a rebuild.

A stage is a plain function in `stage.py`'s terms; an artifact without a record is not finished.
"""
