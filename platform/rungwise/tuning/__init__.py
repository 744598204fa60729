"""Tuning: the settings to try, records of trials, and sweeps on Ray Tune within one stage. The
trials of a search over pretraining are stages themselves (pipeline/search.py)."""

from rungwise.tuning.config import SweepConfig, SweepStageConfig, check_space, check_values
from rungwise.tuning.record import SWEEP

__all__ = ["SWEEP", "SweepConfig", "SweepStageConfig", "check_space", "check_values"]
