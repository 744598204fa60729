"""Tuning: the space, draws, halving and record of trials, and sweeps on Ray Tune.

    space ──> draws ──> trials ──> (the best go on) ──> record ──> winner, expected best

The space maps dotted keys of the recipe to allowed values; a trial's values go through the same
override function as the command line. A sweep runs its trials, which fine-tune, on Ray Tune within
one stage. The trials of a search over pretraining are stages themselves (pipeline/search.py).
"""

from rungwise.tuning.config import SweepConfig, SweepStageConfig
from rungwise.tuning.draws import check_values, list_upstream
from rungwise.tuning.record import SWEEP
from rungwise.tuning.space import check_space

__all__ = [
    "SWEEP",
    "SweepConfig",
    "SweepStageConfig",
    "check_space",
    "check_values",
    "list_upstream",
]
