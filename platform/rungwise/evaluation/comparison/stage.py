"""The evaluate stage, for planning; compare.py compares the variants."""

from rungwise.core.stages.stage import Later, StageType
from rungwise.evaluation.comparison.summary import EvaluateSummary

EVALUATE = StageType(
    "evaluate",
    12,
    Later("rungwise.evaluation.comparison.compare:compare_variants"),
    EvaluateSummary,
    resumes=True,
)
