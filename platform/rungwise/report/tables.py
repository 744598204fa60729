"""The numbers behind the page as rows of CSV files, in full precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.page.fill_in import Filled
from rungwise.evaluation.page.generation import Continued
from rungwise.evaluation.page.neighbours import Neighbours
from rungwise.evaluation.statistics import holm
from rungwise.report.compared import Compared, Swept
from rungwise.sweep.record import table

Row = dict[str, Any]
_OF_A_TRIAL = (
    *("trial", "task", "variant", "state", "error", "winner", "stopped_early"),
    *("epochs_run", "epochs_asked", "score", "loss", "seconds"),
)


def stages(inputs: Mapping[str, Artifact]) -> list[Row]:
    """Every stage: its duration, headline, folder, MLflow run and commit."""
    return [
        {
            "stage": name,
            "seconds": artifact.record["seconds"],
            "made": artifact.headline,
            "fingerprint": artifact.fingerprint,
            "folder": artifact.folder.uri,
            "mlflow_run_id": artifact.record["mlflow_run_id"],
            "commit": artifact.record["made_by"]["commit"],
            "finished": artifact.record["finished"],
        }
        for name, artifact in inputs.items()
    ]


def noise(compared: Compared) -> list[Row]:
    """The judged metric of each variant by rate of typing errors."""
    return [
        {"task": task.name, "variant": name, "metric": task.metric, "rate": rate, **vars(each)}
        for task in compared.tasks
        for name, variant in task.evaluated.variants.items()
        for rate, each in variant.noise.items()
    ]


def seconds(inputs: Mapping[str, Artifact], most: int) -> dict[str, float]:
    """Seconds by stage title; with more than `most` stages, by kind with the number of stages."""
    if len(inputs) <= most:
        return {title: artifact.record["seconds"] for title, artifact in inputs.items()}
    kinds: dict[str, list[float]] = {}
    for artifact in inputs.values():
        kinds.setdefault(artifact.stage, []).append(artifact.record["seconds"])
    return {
        kind if len(each) == 1 else f"{kind} ({len(each)})": sum(each)
        for kind, each in kinds.items()
    }


def trials(sweeps: Sequence[Swept]) -> list[Row]:
    """Every trial of every sweep with its settings; failed ones have no score."""
    return [
        {
            "task": sweep.task,
            "variant": sweep.variant,
            **row,
            "stopped_early": trial.stopped_early,
            "winner": trial.name == sweep.summary.best.name,
        }
        for sweep in sweeps
        for trial, row in zip(sweep.summary.trials, table(sweep.summary.trials), strict=True)
    ]


def swept_columns(trials: Sequence[Row]) -> list[str]:
    """The columns of `trials` that are settings with a name of their own."""
    names = dict.fromkeys(key for trial in trials for key in trial)
    return [name for name in names if name not in _OF_A_TRIAL and "/" not in name]


def seeds(compared: Compared) -> list[Row]:
    """Validation and test scores of every task, budget, variant and seed."""
    return [
        {
            **_where(evaluated),
            "variant": row.variant,
            "seed": row.seed,
            "epoch": row.epoch,
            **{f"validation_{metric}": value for metric, value in row.validation.items()},
            **{f"test_{metric}": value for metric, value in row.test.items()},
        }
        for evaluated in _all(compared)
        for row in evaluated.rows
    ]


def differences(compared: Compared) -> list[Row]:
    """Every pair of variants at every task and budget, with both intervals. `bootstrap_p_holm` is
    corrected over all rows."""
    pairs = [(evaluated, row) for evaluated in _all(compared) for row in evaluated.differences]
    corrected = holm([row.bootstrap.p for _, row in pairs])
    return [
        {
            **_where(evaluated),
            "metric": evaluated.metric,
            "first": row.first,
            "second": row.second,
            **asdict(row.seeds),
            "bootstrap_low": row.bootstrap.low,
            "bootstrap_high": row.bootstrap.high,
            "bootstrap_p": row.bootstrap.p,
            "bootstrap_p_holm": p,
            "relative_error_reduction": row.error_reduction,
        }
        for (evaluated, row), p in zip(pairs, corrected, strict=True)
    ]


def budgets(compared: Compared) -> list[Row]:
    """The judged score of every variant at every number of labelled examples."""
    return [
        {
            **_where(evaluated),
            "variant": name,
            "metric": evaluated.metric,
            **asdict(variant.estimates[evaluated.metric]),
        }
        for evaluated in _all(compared)
        for name, variant in evaluated.variants.items()
    ]


def mixes(compared: Compared) -> list[Row]:
    """Layer weights of every variant and seed that learnt to mix; layer 0 is the embeddings."""
    return [
        {**_where(evaluated), "variant": row.variant, "seed": row.seed, "layer": layer}
        | {"weight": weight}
        for evaluated in _all(compared)
        for row in evaluated.rows
        for layer, weight in enumerate(row.mix or ())
    ]


def _all(compared: Compared) -> list[EvaluateSummary]:
    return [evaluated for task in compared.tasks for evaluated in task.by_budget]


def _where(evaluated: EvaluateSummary) -> Row:
    return {
        "task": evaluated.task,
        "train_examples": evaluated.examples.train,
        "all_examples": evaluated.budget is None,
    }


def fill_in(filled: Sequence[Filled]) -> list[Row]:
    """Every guess for every blank."""
    return [
        {
            "instance": row.blank.instance,
            "position": row.blank.position,
            "before": row.blank.before,
            "after": row.blank.after,
            "answer": row.blank.answer,
            "answer_rank": row.rank,
            "answer_probability": row.probability,
            "guess_rank": place,
            "guess": guess.text,
            "guess_probability": guess.probability,
            "right": guess.right,
        }
        for row in filled
        for place, guess in enumerate(row.guesses, start=1)
    ]


def continuations(continued: Sequence[Continued]) -> list[Row]:
    """Every prompt with its true and generated continuations."""
    return [
        {
            "instance": row.prompt.instance,
            "prompt": row.prompt.text,
            "text": row.prompt.truth,
            "greedy": row.greedy,
            "sampled": row.sampled,
        }
        for row in continued
    ]


def neighbours(shown: Sequence[Neighbours]) -> list[Row]:
    """One row per word and neighbour."""
    return [
        {"word": row.word, "near": each.word, "cosine": each.cosine}
        for row in shown
        for each in row.nearest
    ]
