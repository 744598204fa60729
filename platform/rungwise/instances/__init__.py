"""Instances, the rows that models train on: built once in shards, read in a computed order."""
