"""The sweep stage, for planning; running.py runs the trials."""

from rungwise.core.stages.stage import Later, StageType
from rungwise.sweep.record import SweepSummary

SWEEP = StageType(
    "sweep", 10, Later("rungwise.sweep.running:run_sweep"), SweepSummary, resumes=True
)
