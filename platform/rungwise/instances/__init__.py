"""Instances: what one forward pass reads. Built once in shards, read by index in computed order."""
