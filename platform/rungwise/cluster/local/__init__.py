"""`rungwise up` and `rungwise down`: a real Ray cluster of several nodes on this machine."""
