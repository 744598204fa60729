"""Sweeps on Ray Tune over settings of fine-tuning and of earlier blocks.

    space ──> draws ──> Tune ──> trials, one record each ──> winner, curves, epochs saved

The space maps dotted keys of the recipe to allowed values; a trial's values go through the same
override function as the command line. One stage sweeps one variant.
"""

from rungwise.sweep.config import SweepConfig, SweepStageConfig
from rungwise.sweep.draws import check_values, upstream_values
from rungwise.sweep.record import SWEEP
from rungwise.sweep.space import check_space

__all__ = [
    "SWEEP",
    "SweepConfig",
    "SweepStageConfig",
    "check_space",
    "check_values",
    "upstream_values",
]
