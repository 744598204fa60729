"""The search stage, for planning; running.py writes its record."""

from rungwise.core.stages.stage import Later, StageType
from rungwise.evaluation.search.record import SearchSummary

SEARCH = StageType(
    "search", 1, Later("rungwise.evaluation.search.running:run_search"), SearchSummary
)
