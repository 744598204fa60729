"""The search over settings of pretraining: its block, its measures and its stage, which records
trials that have all ended (pipeline/search.py runs them). A new measure is added to `AnyMeasure`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, Reporter
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Summary, SummaryPart
from rungwise.core.storage.folder import Folder
from rungwise.core.wording import csv_bytes, format_count
from rungwise.evaluation.suites.base import Paths, Suite
from rungwise.evaluation.suites.items import MeasureSummary
from rungwise.evaluation.suites.measure import SuiteConfig
from rungwise.evaluation.suites.word_vectors import SimilaritySuite
from rungwise.models.family import LayeredFamily
from rungwise.models.word_vectors.vector_family import VectorFamily
from rungwise.tasks.scoring.metrics import format_metric
from rungwise.training.fit_config import PretrainStageConfig
from rungwise.training.summary import PretrainSummary
from rungwise.tuning.config import Space, TuningConfig, describe_values
from rungwise.tuning.record import TrialRecord, best_so_far, expected_best, tabulate

# Keys that change what a loss is of, or its scale.
_LOSS_KEYS = ("pretrain.objective", "pretrain.mixture", "instances.kind", "instances.masking")
_SAME_PAIRS = 0.5  # so many pairs of either of two lists make them the same


class Measure(Config):
    """A score of a pretraining. Each subclass has a literal `kind`."""

    metric: ClassVar[str]  # the metric that says how a score is written
    higher_is_better: ClassVar[bool] = False
    on_held_out: ClassVar[bool] = False  # whether it chooses by the held-out text

    kind: Any

    @abstractmethod
    def label(self, pretrain: PretrainSummary) -> str:
        """The name of the score for people."""

    @abstractmethod
    def score(self, pretrain: PretrainSummary, measured: MeasureSummary | None) -> float | None:
        """The score of a finished pretraining, None if it has none; `measured`: with `suite`."""

    def suite(self) -> SuiteConfig | None:
        """The suite to measure each trial with; None if its pretraining has the score."""
        return None

    def explain_key(self, key: str, model: Any) -> str:
        """Why scores with other values of a key do not compare; "" if they do."""
        return ""

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        """Raise ConfigError if the model has no such score, or if the page reports it by one of the
        `suites`."""


class _Loss(Measure):
    on_held_out: ClassVar[bool] = True

    @abstractmethod
    def key(self, pretrain: PretrainSummary) -> str:
        """Its name in the metrics of a validation."""

    def score(self, pretrain: PretrainSummary, measured: MeasureSummary | None) -> float | None:
        return pretrain.final.get(self.key(pretrain))

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        if not config.pretrain.holds_out:
            raise ConfigError(
                f"search.measure is {self.kind}, but the loss of {config.model.kind} is on the "
                "pairs that it learns from, where the longest training always wins; set "
                "search.measure to {kind: word_list, path: ...}, of a ladder in that variant"
            )


class ValidationLoss(_Loss):
    """The loss on held-out text, or of held-out pairs of words where vectors are learnt."""

    metric: ClassVar[str] = "loss"

    kind: Literal["validation_loss"] = "validation_loss"

    def label(self, pretrain: PretrainSummary) -> str:
        unit = pretrain.model.objective(pretrain.objective).tokens.unit
        return f"validation loss (nats per {unit})"

    def key(self, pretrain: PretrainSummary) -> str:
        return pretrain.model.objective(pretrain.objective).tokens.loss_key

    def explain_key(self, key: str, model: Any) -> str:
        if key.startswith("tokenizer."):
            return (
                "losses over several tokenizers do not compare; set search.measure to "
                "{kind: bits_per_byte}"
            )
        of_vectors = isinstance(model, VectorFamily)
        scales = of_vectors and key.startswith("model.") and key != "model.size"
        if not key.startswith(_LOSS_KEYS) and not scales:
            return ""
        word_list = "set search.measure to {kind: word_list, path: ...}"
        remedy = word_list if of_vectors else "leave it out"
        return f"another value is another loss, and these do not compare; {remedy}"


class BitsPerByte(_Loss):
    """Bits for each byte of held-out text, which compare over tokenizers."""

    metric: ClassVar[str] = "bits_per_byte"

    kind: Literal["bits_per_byte"] = "bits_per_byte"

    def label(self, pretrain: PretrainSummary) -> str:
        return "bits per byte"

    def key(self, pretrain: PretrainSummary) -> str:
        return "bits_per_byte"

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        super().check(config, suites)
        if not config.objective.is_code_length:
            raise ConfigError(
                f"search.measure is bits_per_byte, but the loss of {config.objective.name} is not "
                "the length of a code; take validation_loss"
            )


class WordList(Measure):
    """The correlation with people's ratings of pairs of words, the mean over the lists, which must
    not be those that `measure` reports."""

    metric: ClassVar[str] = "correlation"
    higher_is_better: ClassVar[bool] = True

    kind: Literal["word_list"] = "word_list"
    path: Paths  # files or folders, as of a suite `similarity`

    def label(self, pretrain: PretrainSummary) -> str:
        return "correlation with people's ratings (x 100)"

    def suite(self) -> SimilaritySuite:
        return SimilaritySuite(path=self.path)

    def score(self, pretrain: PretrainSummary, measured: MeasureSummary | None) -> float | None:
        scores = measured.scores if measured else ()
        values = [row.value for row in scores if row.metric == "correlation" and row.group is None]
        return fmean(values) if values else None

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        if not isinstance(config.model, LayeredFamily):
            raise ConfigError(
                f"search.measure is word_list, but model.kind {config.model.kind} has no "
                "vectors of words; take validation_loss"
            )
        own = self.suite().rated_pairs("search.measure")
        for name, suite in suites.items():
            reported = suite.rated_pairs(f"measure.{name}")
            _refuse_shared(own, reported, f"measure.{name}, which the page reports")
            _refuse_shared(reported, own, f"the list that chooses, and measure.{name} reports them")


def _refuse_shared(
    lists: Mapping[str, list[frozenset[str]]], others: Mapping[str, list[frozenset[str]]], what: str
) -> None:
    """Raise ConfigError if one of the `lists` of pairs lies in the `others`."""
    other_pairs = {pair for pairs in others.values() for pair in pairs}
    for file, pairs in lists.items():
        shared = sum(pair in other_pairs for pair in pairs)
        if pairs and shared >= _SAME_PAIRS * len(pairs):
            raise ConfigError(
                f"search.measure.path: {shared} of {len(pairs)} pairs of {file} are in {what}; "
                "choose by another list"
            )


AnyMeasure = Annotated[ValidationLoss | BitsPerByte | WordList, Field(discriminator="kind")]


_BLOCKS = ("tokenizer", "instances", "model", "pretrain")  # whose keys may be tried


class SearchConfig(TuningConfig):
    """Which settings of pretraining to try: keys of tokenizer, instances, model and pretrain.
    Trials share a budget equally; the recipe goes on with the values of the best. With `halving`, a
    longer run continues from the checkpoints of the shorter one, so it needs a schedule whose first
    steps do not depend on their number."""

    measure: AnyMeasure = ValidationLoss()  # by what the best is chosen
    # budget of all trials together, in seconds of training; null: none
    seconds: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1)  # the same in tokens read; null: none
    # pretrainings of the best with consecutive seeds, the first included; their spread is reported
    seeds: int = Field(default=3, ge=1)

    def check_key(self, key: str, allowed: Space) -> None:
        block, _, rest = key.partition(".")
        if not rest or block not in _BLOCKS:
            raise ValueError(
                f"space.{key}: expected a dotted key of {', '.join(_BLOCKS)}, such as "
                "pretrain.optimizer.learning_rate; settings of finetune are those of `sweep`"
            )

    @model_validator(mode="after")
    def _check_budget(self) -> SearchConfig:
        if self.seconds is not None and self.tokens is not None:
            raise ValueError("seconds and tokens are both set; set one of them to null")
        if self.halving and self.seconds is not None:
            raise ValueError(
                "halving stops trials after a part of their steps, and seconds would end them "
                "elsewhere; give tokens instead, or leave halving out"
            )
        return self

    @property
    def budget(self) -> Literal["seconds", "tokens"] | None:
        """The key that limits the trials, if there is one."""
        return "seconds" if self.seconds else "tokens" if self.tokens else None


TABLE = "trials.csv"
# Of the stages of a pretraining: its own, and that of the suite by which trials are chosen, if any.
Titles = tuple[str, ...]


class TrialPlan(Config):
    """A trial: the values of its keys and its pretrainings, the last with its score."""

    number: int
    values: dict[str, Any]
    runs: tuple[Titles, ...]
    error: str = ""


class SearchStageConfig(Config):
    """A search whose trials have ended; `variant` is what it tuned."""

    variant: str
    search: SearchConfig
    trials: tuple[TrialPlan, ...]
    best: int
    seeds: tuple[Titles, ...]  # of the best, with each further seed


class SearchRun(SummaryPart):
    """A finished pretraining; costs are without those of a shorter run that it continues."""

    pretrain: str  # the title of its stage
    fingerprint: str
    score: float
    seconds: float
    tokens: int


class SearchTrial(TrialRecord):
    runs: tuple[SearchRun, ...]
    tokens: int

    def columns(self) -> dict[str, Any]:
        return {"pretrainings": len(self.runs), "tokens": self.tokens}


class SearchSummary(Summary):
    """All trials, the best one and its score with each seed of pretraining."""

    variant: str
    measure: str
    metric: str  # of the scores
    label: str  # of the measure, for people
    higher_is_better: bool
    on_held_out: bool  # whether the held-out text has chosen the best
    exchangeable: bool  # whether all trials ran to their end
    trials: tuple[SearchTrial, ...]
    best: SearchTrial
    seeds: tuple[SearchRun, ...]
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
        """The expected best of 1, 2, ... trials; the best so far where some were stopped early."""
        curve = expected_best if self.exchangeable else best_so_far
        return curve(self.scores, self.higher_is_better)

    @property
    def winner_scores(self) -> list[float]:
        """The scores of the best with each seed, the first included."""
        assert self.best.score is not None
        return [self.best.score, *(run.score for run in self.seeds)]


def run_search(
    config: SearchStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> SearchSummary:
    """Write the table of all trials. Inputs: the stages of their runs, by title."""
    search, measure = config.search, config.search.measure
    rounds = max(len(plan.runs) for plan in config.trials)
    trials = [_read_trial(measure, plan, rounds, inputs) for plan in config.trials]
    for trial in trials:
        _report(trial, context.report)
    seeds = [run for titles in config.seeds if (run := _read_run(measure, titles, inputs))]
    best = trials[config.best]
    assert best.score is not None, "the best did not fail"
    scores, spread = [best.score, *(run.score for run in seeds)], ""
    if len(scores) > 1:
        mean, deviation = (format_metric(of(scores), measure.metric) for of in (fmean, stdev))
        spread = f", {len(scores)} seeds {mean} ± {deviation}"
    budget = f"{search.tokens:,} tokens" if search.tokens else None
    if search.seconds:
        budget = f"{search.seconds:g} s"
    failed = sum(trial.score is None for trial in trials)
    summary = SearchSummary(
        variant=config.variant,
        measure=measure.kind,
        metric=measure.metric,
        label=measure.label(PretrainSummary.of(inputs[best.runs[-1].pretrain])),
        higher_is_better=measure.higher_is_better,
        on_held_out=measure.on_held_out,
        exchangeable=search.halving is None,
        trials=tuple(trials),
        best=best,
        seeds=tuple(seeds),
        budget=budget,
        seconds=round(sum(trial.seconds for trial in trials), 3),
        tokens=sum(trial.tokens for trial in trials),
        show=(TABLE,),
        headline=f"{format_count(len(trials), 'trial')}, {failed} failed  best "
        f"{measure.kind.replace('_', ' ')} {format_metric(best.score, measure.metric)}{spread} "
        f"({describe_values(best.values)})",
    )
    rows = [
        row | {"best": trial.number == best.number}
        for trial, row in zip(trials, tabulate(trials), strict=True)
    ]
    output.write_bytes(TABLE, csv_bytes(rows))
    return summary


SEARCH = StageType("search", 4, run_search, SearchSummary)


def score_run(
    measure: Measure, pretrain: Artifact, measured: Artifact | None = None
) -> float | None:
    """The score of a finished pretraining, None if it has none."""
    of_suite = MeasureSummary.of(measured) if measured else None
    return measure.score(PretrainSummary.of(pretrain), of_suite)


def count_cost(pretrain: Artifact, before: Artifact | None = None) -> tuple[float, int]:
    """Seconds and tokens of a pretraining, without the share of the steps that it took over from
    the shorter one `before`."""
    summary, own = PretrainSummary.of(pretrain), 1.0
    if before is not None and summary.gradient is not None and summary.gradient.prolonged:
        last = summary.gradient.prolonged[-1]
        if last.fingerprint == before.fingerprint:
            own -= last.step / summary.gradient.steps
    return summary.seconds * own, round(summary.tokens * own)


def _read_trial(
    measure: Measure, plan: TrialPlan, rounds: int, inputs: Mapping[str, Artifact]
) -> SearchTrial:
    runs: list[SearchRun] = []
    before = None
    for titles in plan.runs:
        if (run := _read_run(measure, titles, inputs, before)) is None:
            break
        runs.append(run)
        before = inputs[run.pretrain]
    failed = bool(plan.error) or not runs
    return SearchTrial(
        number=plan.number,
        values=plan.values,
        state="failed" if failed else "finished" if len(runs) == rounds else "stopped_early",
        runs=tuple(runs),
        score=None if failed else runs[-1].score,
        seconds=round(sum(run.seconds for run in runs), 3),
        tokens=sum(run.tokens for run in runs),
        error=plan.error or ("" if runs else "it has no score"),
    )


def _read_run(
    measure: Measure, titles: Titles, inputs: Mapping[str, Artifact], before: Artifact | None = None
) -> SearchRun | None:
    """None if the run failed or has no score."""
    if not all(title in inputs for title in titles):
        return None
    pretrain, *measured = (inputs[title] for title in titles)
    if (score := score_run(measure, pretrain, *measured)) is None:
        return None
    seconds, tokens = count_cost(pretrain, before)
    return SearchRun(
        pretrain=titles[0],
        fingerprint=pretrain.fingerprint,
        score=score,
        seconds=seconds,
        tokens=tokens,
    )


def _report(trial: SearchTrial, report: Reporter) -> None:
    report.nested(trial.name, trial.values)
    if trial.score is not None:
        costs = {"seconds": trial.seconds, "tokens": float(trial.tokens)}
        report.metrics({"score": trial.score, **costs}, 0, run=trial.name)
    report.nested(trial.name, {}, "FAILED" if trial.score is None else "FINISHED")
