"""The record of a search: its trials with their scores and costs, and the best with its seeds."""

from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.core.stages.stage import Later, StageType
from rungwise.core.stages.summary import Part, Summary
from rungwise.evaluation.search.config import SearchConfig
from rungwise.evaluation.search.expected import best_so_far, expected_best


class RunPlan(Config):
    """A pretraining of a trial: the titles of its stages. `measured` is that of a word list."""

    pretrain: str
    measured: str | None = None


class TrialPlan(Config):
    """A trial: the values of its keys, its pretrainings, the last with its score, and those before
    that only told how long an epoch takes. `error` says why it failed, "" if it did not."""

    number: int
    values: dict[str, Any]
    runs: tuple[RunPlan, ...]
    pilot: RunPlan | None = None
    error: str = ""


class SearchStageConfig(Config):
    """A search whose trials have ended; `variant` is the name of what it tuned."""

    variant: str
    search: SearchConfig
    trials: tuple[TrialPlan, ...]
    best: int
    seeds: tuple[RunPlan, ...]  # of the best, with each further seed


class Run(Part):
    """A finished pretraining; seconds and tokens are without a shorter run that it continues."""

    pretrain: str  # the title of its stage
    fingerprint: str
    score: float
    seconds: float
    tokens: int
    curve: tuple[tuple[int, float], ...]  # the score by tokens; empty if it has none


class Trial(Part):
    """A trial that has ended: `score` is None if it failed, `pilot_seconds` what telling the length
    of an epoch took."""

    number: int
    values: dict[str, Any]
    runs: tuple[Run, ...]
    score: float | None
    seconds: float
    tokens: int
    error: str

    @property
    def name(self) -> str:
        return f"trial-{self.number:03d}"


class SearchSummary(Summary):
    """All trials, the best one and its score with each seed of pretraining. `rounds` is how many
    pretrainings a trial has that was not stopped early."""

    variant: str
    measure: str
    label: str  # of the measure, for people
    higher_is_better: bool
    exchangeable: bool  # whether trials were drawn independently and all ran to their end
    trials: tuple[Trial, ...]
    best: Trial
    seeds: tuple[Run, ...]
    budget: str | None
    seconds: float
    tokens: int

    @property
    def worst(self) -> float:
        scores = [trial.score for trial in self.trials if trial.score is not None]
        return min(scores) if self.higher_is_better else max(scores)

    @property
    def scores(self) -> list[float]:
        """The scores of all trials by number; a failed one has that of the worst."""
        return [self.worst if trial.score is None else trial.score for trial in self.trials]

    @property
    def expected(self) -> list[float]:
        """The expected best of 1, 2, ... trials; the best so far where each depends on others."""
        curve = expected_best if self.exchangeable else best_so_far
        return curve(self.scores, self.higher_is_better)

    @property
    def winner_scores(self) -> list[float]:
        """The scores of the best with each seed, the first included."""
        assert self.best.score is not None
        return [self.best.score, *(run.score for run in self.seeds)]


SEARCH = StageType(
    "search", 1, Later("rungwise.evaluation.search.running:run_search"), SearchSummary
)
