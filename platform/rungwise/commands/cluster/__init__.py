"""Commands that start and stop clusters, on this machine and on AWS."""
