"""Stages and their artifacts: context, records, digests, leases, summaries, the plan."""
