"""The numbers behind the page as rows of CSV files, in full precision."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.page.fill_in import BlankResult
from rungwise.evaluation.page.generation import Continuation
from rungwise.evaluation.page.neighbours import Neighbours
from rungwise.evaluation.statistics import holm
from rungwise.report.sections.variants import Comparison, VariantSweep
from rungwise.tuning.record import tabulate

Row = dict[str, Any]
_MOST_STAGES = 20  # listed one by one


def stages(inputs: Mapping[str, Artifact]) -> list[Row]:
    """Every stage: its duration, headline, folder, MLflow run and commit."""
    return [
        {
            "stage": name,
            "seconds": artifact.record["seconds"],
            "starting_seconds": artifact.record.get("starting_seconds", ""),
            "made": artifact.headline,
            "fingerprint": artifact.fingerprint,
            "folder": artifact.folder.uri,
            "mlflow_run_id": artifact.record["mlflow_run_id"],
            "commit": artifact.record["made_by"]["commit"],
            "finished": artifact.record["finished"],
        }
        for name, artifact in inputs.items()
    ]


def starting_seconds(inputs: Mapping[str, Artifact]) -> float:
    """Seconds in which stages waited for their processes and workers to start."""
    return sum(artifact.record.get("starting_seconds", 0.0) for artifact in inputs.values())


def stage_seconds(inputs: Mapping[str, Artifact]) -> dict[str, float]:
    """Seconds by stage title; with many stages, by kind with the number of stages."""
    if len(inputs) <= _MOST_STAGES:
        return {title: artifact.record["seconds"] for title, artifact in inputs.items()}
    kinds: dict[str, list[float]] = {}
    for artifact in inputs.values():
        kinds.setdefault(artifact.stage, []).append(artifact.record["seconds"])
    return {
        kind if len(each) == 1 else f"{kind} ({len(each)})": sum(each)
        for kind, each in kinds.items()
    }


def noise(comparison: Comparison) -> list[Row]:
    """The judged metric of each variant by rate of typing errors."""
    return [
        {"task": task.name, "variant": name, "metric": task.metric, "rate": rate, **vars(each)}
        for task in comparison.tasks
        for name, variant in task.evaluation.variants.items()
        for rate, each in variant.noise.items()
    ]


def trials(sweeps: Sequence[VariantSweep]) -> list[Row]:
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
        for trial, row in zip(sweep.summary.trials, tabulate(sweep.summary.trials), strict=True)
    ]


def seeds(comparison: Comparison) -> list[Row]:
    """Validation and test scores of every task, budget, variant and seed."""
    return [
        {
            **_where(evaluation),
            "variant": seed.variant,
            "pretraining": seed.pretraining,
            "seed": seed.seed,
            "epoch": seed.epoch,
            **{f"validation_{metric}": value for metric, value in seed.validation.items()},
            **{f"test_{metric}": value for metric, value in seed.test.items()},
        }
        for evaluation in _evaluations(comparison)
        for seed in evaluation.rows
    ]


def differences(comparison: Comparison) -> list[Row]:
    """Every pair of variants at every task and budget, with both intervals. `bootstrap_p_holm` is
    corrected over all rows."""
    pairs = [(each, pair) for each in _evaluations(comparison) for pair in each.differences]
    adjusted = holm([pair.bootstrap.p for _, pair in pairs])
    return [
        {
            **_where(evaluation),
            "metric": evaluation.metric,
            "first": pair.first,
            "second": pair.second,
            **asdict(pair.seeds),
            "bootstrap_low": pair.bootstrap.low,
            "bootstrap_high": pair.bootstrap.high,
            "bootstrap_p": pair.bootstrap.p,
            "bootstrap_p_holm": p,
            "relative_error_reduction": pair.error_reduction,
        }
        for (evaluation, pair), p in zip(pairs, adjusted, strict=True)
    ]


def budgets(comparison: Comparison) -> list[Row]:
    """The judged score of every variant at every number of labelled examples."""
    return [
        {
            **_where(evaluation),
            "variant": name,
            "metric": evaluation.metric,
            **asdict(variant.estimates[evaluation.metric]),
        }
        for evaluation in _evaluations(comparison)
        for name, variant in evaluation.variants.items()
    ]


def layer_weights(comparison: Comparison) -> list[Row]:
    """Layer weights of every variant and seed that learnt to mix; layer 0 is the embeddings."""
    return [
        {**_where(evaluation), "variant": seed.variant, "seed": seed.seed, "layer": layer}
        | {"weight": weight}
        for evaluation in _evaluations(comparison)
        for seed in evaluation.rows
        for layer, weight in enumerate(seed.mix or ())
    ]


def _evaluations(comparison: Comparison) -> list[EvaluateSummary]:
    return [evaluation for task in comparison.tasks for evaluation in task.by_budget]


def _where(evaluation: EvaluateSummary) -> Row:
    return {
        "task": evaluation.task,
        "train_examples": evaluation.examples.train,
        "all_examples": evaluation.budget is None,
    }


def guesses(results: Sequence[BlankResult]) -> list[Row]:
    """Every guess for every blank."""
    return [
        {
            "instance": result.blank.instance,
            "position": result.blank.position,
            "before": result.blank.before,
            "after": result.blank.after,
            "answer": result.blank.answer,
            "answer_rank": result.rank,
            "answer_probability": result.probability,
            "guess_rank": place,
            "guess": guess.text,
            "guess_probability": guess.probability,
            "right": guess.right,
        }
        for result in results
        for place, guess in enumerate(result.guesses, start=1)
    ]


def continuations(continuations: Sequence[Continuation]) -> list[Row]:
    """Every prompt with its true and generated continuations."""
    return [
        {
            "instance": each.prompt.instance,
            "prompt": each.prompt.text,
            "text": each.prompt.truth,
            "greedy": each.greedy,
            "sampled": each.sampled,
        }
        for each in continuations
    ]


def neighbours(words: Sequence[Neighbours]) -> list[Row]:
    """One row per word and neighbour."""
    return [
        {"word": word.word, "near": each.word, "cosine": each.cosine}
        for word in words
        for each in word.nearest
    ]
