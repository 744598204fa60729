"""A self-contained HTML report of a run, with its plots."""
