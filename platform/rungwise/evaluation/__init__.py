"""Suites measure one model; comparison/ sets variants and rungs side by side."""
