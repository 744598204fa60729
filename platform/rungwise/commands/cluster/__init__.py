"""Commands that start and stop a cluster on this machine."""
