"""The score of a pretraining in a search, and what it cost."""

from statistics import fmean

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.search.config import BitsPerByte, Measure, WordList
from rungwise.evaluation.suites.measure import MeasureSummary
from rungwise.pretraining.summary import PretrainSummary

LIST = "list"  # the name of the suite of a word list


def score_run(measure: Measure, pretrain: Artifact, measured: Artifact | None) -> float | None:
    """The score of a finished pretraining, None if it has none; higher is better for word lists
    alone. `measured` is the measurement of the word list."""
    if isinstance(measure, WordList):
        assert measured is not None, "a word list is measured"
        values = [
            score.value
            for score in MeasureSummary.of(measured).scores
            if score.metric == "correlation" and score.group is None
        ]
        return fmean(values) if values else None
    summary = PretrainSummary.of(pretrain)
    return summary.final.get(loss_key(measure, summary))


def name_measure(measure: Measure, pretrain: Artifact) -> str:
    """Name a score for people."""
    if isinstance(measure, WordList):
        return "correlation with people's ratings (x 100)"
    if isinstance(measure, BitsPerByte):
        return "bits per byte"
    summary = PretrainSummary.of(pretrain)
    part = summary.model.objective(summary.objective).tokens
    return f"validation loss (nats per {part.unit})"


def loss_key(measure: Measure, summary: PretrainSummary) -> str:
    """The name in the metrics of a validation of what `measure` compares."""
    if isinstance(measure, BitsPerByte):
        return "bits_per_byte"
    return summary.model.objective(summary.objective).tokens.loss_key


def count_cost(pretrain: Artifact, before: Artifact | None) -> tuple[float, int]:
    """Seconds and tokens of a pretraining, without those of the shorter one `before` if it goes on
    from there: the steps that it took over count as its average step."""
    summary, own = PretrainSummary.of(pretrain), 1.0
    if before is not None and summary.gradient is not None and summary.gradient.prolonged:
        last = summary.gradient.prolonged[-1]
        if last.fingerprint == before.fingerprint:
            own -= last.step / summary.gradient.steps
    return summary.seconds * own, round(summary.tokens * own)
