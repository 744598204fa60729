"""The stages that write a page, for planning: their settings, and where they are written."""

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages.artifact import Summary
from rungwise.core.stages.stage import LazyFunction, StageType

REPORT_PAGE = "report.html"


class ReportConfig(Config):
    """The title of the page, and how many examples it shows; which kind depends on the model."""

    title: str | None = None  # null: the label of the run
    fill_in_examples: int = Field(default=8, ge=0, le=48)  # hidden words that the model guesses
    continuations: int = Field(default=4, ge=0, le=16)  # prompts that the model continues
    neighbours: int = Field(default=8, ge=0, le=48)  # words shown with their nearest words
    seed: int = Field(default=0, ge=0)  # draws the examples


class LadderConfig(Config):
    """The title of the page, and each rung with the titles of its measure stages, one per seed;
    `claims_at` are titles of claims at shares of the budget, `gaps` the tasks and rungs that are
    left out, in words, and why."""

    title: str | None  # the label of the run if unset
    measured: dict[str, tuple[str, ...]]
    claims_at: dict[str, str] = Field(default_factory=dict)
    gaps: dict[str, str] = Field(default_factory=dict)


class ReportSummary(Summary):
    page: str
    # fingerprint of the pretrained model that a ladder recommends for its first question
    recommended: str | None = None


REPORT = StageType("report", 11, LazyFunction("rungwise.report.run:write_report"), ReportSummary)
LADDER = StageType("ladder", 10, LazyFunction("rungwise.report.ladder:write_ladder"), ReportSummary)
