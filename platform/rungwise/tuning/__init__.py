"""Tuning: the settings to try, records of trials, and sweeps on Ray Tune within one stage. The
trials of a search over pretraining are stages themselves (pipeline/search.py)."""
