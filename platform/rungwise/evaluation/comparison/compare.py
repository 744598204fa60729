"""Evaluate stage: compare variants on the test split of one task, all with the same new seeds,
which avoid the bias of a sweep's winner, and beside rivals: what people use without pretraining."""

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact, chain
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.cleaning.overlap import find_texts
from rungwise.corpus.summary import CORPORA, read_split
from rungwise.evaluation import statistics
from rungwise.evaluation.comparison.errors import prediction_rows, write_predictions
from rungwise.evaluation.comparison.seeds import (
    SeedJob,
    SeedResult,
    VariantInputs,
    add_probabilities,
    load_predictions,
    resolve_variant,
    score_seeds,
)
from rungwise.evaluation.comparison.summary import (
    CompareConfig,
    EvaluateConfig,
    EvaluateSummary,
    Overlap,
    PairedDifference,
    RivalResult,
    VariantResult,
    independent_scores,
)
from rungwise.finetune import DESCRIPTION
from rungwise.tasks.data.files import find_overlap, noise_split, read_splits
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskInfo, TaskSummary, read_examples
from rungwise.tasks.kinds.kind import Outputs
from rungwise.tasks.kinds.rivals import row_items
from rungwise.tasks.scoring.metrics import format_metric, metric_range
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.tokenizer import load_reader
from rungwise.training.tensor_files import MODEL, load_tensors, save_tensors

RUN = 8  # words: an example stands in a text if all its runs of so many do


def find_overlaps(
    variants: Mapping[str, VariantInputs], task: Artifact, examples: Sequence[Example]
) -> dict[str, tuple[Overlap, NDArray[np.bool_]]]:
    """Return the overlap of each variant, and which test examples (N,) it has not read before."""
    in_training = find_overlap(read_examples(task, "train"), examples)
    texts = [" ".join(example.parts) for example in examples]
    by_corpora: dict[tuple[str, ...], NDArray[np.bool_]] = {}
    result = {}
    for name, variant in variants.items():
        in_pretraining, has_corpora = np.zeros(len(examples), dtype=bool), True
        if variant.finetune.initialisation == "pretrained":
            try:
                corpora = [each for each in chain(variant.pretrains[0]) if each.stage in CORPORA]
                key = tuple(each.fingerprint for each in corpora)
                if key not in by_corpora:
                    documents = (each for corpus in corpora for each in read_split(corpus, "train"))
                    sentences = (document.sentences for document in documents)
                    by_corpora[key] = find_texts(texts, sentences, RUN)
                in_pretraining = by_corpora[key]
            except (DataError, KeyError):
                has_corpora = False
        count = int(in_pretraining.sum()) if has_corpora else None
        counts = Overlap(training=int(in_training.sum()), pretraining=count)
        result[name] = (counts, ~(in_training | in_pretraining))
    return result


@dataclass(frozen=True)
class RivalRun:
    """A rival with its best strength, its metrics by split, and its predictions on test."""

    name: str
    short: str
    strength: float
    scores: dict[str, dict[str, float]]
    predictions: list[dict[str, Any]]
    seconds: float
    predict_seconds: float  # of the test split


def run_rival(task: Artifact, number: int, noise: Sequence[float]) -> RivalRun:
    """Fit and score one of the rivals of a task, with the strength that is best on validation, the
    smallest of equals."""
    start = time.monotonic()
    kind = task_kind(TaskSummary.of(task).info)
    rival, splits = kind.rivals()[number], read_splits(task, noise)
    train, metric = splits.pop("train"), kind.info.metric
    runs: list[RivalRun] = []
    for strength, values, predict_seconds in rival.fit_strengths(train, splits):
        outputs = {
            split: Outputs(arrays, row_items(arrays), splits[split])
            for split, arrays in values.items()
        }
        calibration = kind.calibrate(outputs["validation"])
        answers = {split: kind.decode(each, calibration) for split, each in outputs.items()}
        scores = {split: kind.score(each, splits[split]) for split, each in answers.items()}
        predictions = add_probabilities(answers["test"], kind.probabilities(outputs["test"]))
        times = round(time.monotonic() - start, 1), round(predict_seconds["test"], 6)
        runs.append(RivalRun(rival.name, rival.short, strength, scores, predictions, *times))
    best = max(runs, key=lambda each: (each.scores["validation"][metric], -each.strength))
    return RivalRun(**{**vars(best), "seconds": runs[-1].seconds})


_SCRATCH = ".seeds"


def compare_variants(
    config: CompareConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> EvaluateSummary:
    """Score every variant with every seed; keep the model of `evaluate.keep` best on validation.
    Inputs: the task, and those of each variant (`input_name`)."""
    import ray

    settings, scratch = config.evaluate, output / _SCRATCH
    task = TaskSummary.of(inputs["task"])
    metric = task.info.metric
    variants = {
        name: resolve_variant(name, finetune, inputs) for name, finetune in config.variants.items()
    }
    jobs = [
        SeedJob(
            variant=variant,
            task=inputs["task"],
            seed=seed,
            noise=settings.noise or [],
            counts_cut=seed == settings.first_seed,
            scratch=scratch,
            files=variant.file_stem(seed, inputs),
            report=context.report,
            pretraining=pretraining,
        )
        for pretraining in range(max(len(variant.pretrains) for variant in variants.values()))
        for seed in settings.seeds(pretraining)
        for variant in variants.values()
        if pretraining < len(variant.pretrains)
    ]
    kind = task_kind(task.info)
    start = ray.remote(num_cpus=1)(run_rival)
    number = len(kind.rivals()) if settings.rivals else 0
    futures = [start.remote(inputs["task"], place, settings.noise or []) for place in range(number)]
    seeds = score_seeds(jobs, context, metric, notes_cut=config.budget is None)
    rivals: dict[str, RivalRun] = {run.short: run for run in ray.get(futures)}
    by_variant = {name: [seed for seed in seeds if seed.variant == name] for name in variants}
    results = {
        name: _summarise_variant(variants[name], each, task.info)
        for name, each in by_variant.items()
    }
    first = next(iter(variants))
    variant = settings.keep if settings.keep in variants else first
    best = min(
        # What registers the model knows the stages of the first pretraining.
        (seed for seed in by_variant[variant] if seed.pretraining == 0),
        key=lambda seed: (-seed.validation[metric], seed.validation["loss"], seed.seed),
    )
    examples = read_examples(inputs["task"], "test")
    rows, sums_by_seed = [], {name: [] for name in variants}
    for seed in seeds:
        predictions = load_predictions(scratch, seed)
        rows += prediction_rows(seed.variant, seed.seed, examples, predictions, kind.answer)
        sums_by_seed[seed.variant].append(kind.sums(predictions, examples))
    # (S, N, k): the contribution of each test example to the metric, per seed
    sums = {name: np.stack(each) for name, each in sums_by_seed.items()}
    for name, run in rivals.items():
        rows += prediction_rows(name, None, examples, run.predictions, kind.answer)
        sums[name] = kind.sums(run.predictions, examples)[None]
    if config.budget is None:
        for name, (overlap, fresh) in find_overlaps(variants, inputs["task"], examples).items():
            if fresh.any():
                totals = sums[name][:, fresh].sum(axis=1)
                overlap = overlap.model_copy(update={"score": float(kind.value(totals).mean())})
            results[name] = results[name].model_copy(update={"overlap": overlap})
    seed, resamples = settings.first_seed, settings.bootstrap_resamples
    values = statistics.draw_values([*sums.values()], kind.value, seed, resamples)
    draws = dict(zip(sums, values, strict=True))
    differences = _pair_differences(by_variant, rivals, draws, task.info, settings)
    write_predictions(rows, output)
    save_tensors(output, MODEL, load_tensors(scratch, f"{best.files}.safetensors"))
    output.write_bytes(DESCRIPTION, json.dumps(best.model, indent=1).encode("utf-8"))
    tokenizer = load_reader(variants[best.variant].tokenizer.folder)
    output.write_bytes(TOKENIZER_FILE, tokenizer.to_str().encode())
    scratch.remove()
    trivial = [scores[metric] for scores in task.baselines.values() if metric in scores]
    lowest = results[first].estimates[metric].low
    means = {name: each.estimates[metric].mean for name, each in results.items()}
    means |= {name: run.scores["test"][metric] for name, run in rivals.items()}
    scores = ", ".join(f"{name} {format_metric(mean, metric)}" for name, mean in means.items())
    most = max(len(each.pretrains) for each in variants.values())
    runs = f"{settings.num_seeds} seeds"
    if most > 1:
        runs = f"{most} pretrainings, {runs} each"
    return EvaluateSummary(
        task=config.task,
        budget=config.budget,
        kind=task.info.kind,
        metric=metric,
        seeds=tuple(settings.seeds()),
        examples=task.examples,
        rows=tuple(seed.row for seed in seeds),
        variants=results,
        rivals={
            name: _summarise_rival(run, draws[name], settings, metric)
            for name, run in rivals.items()
        },
        differences=differences,
        baselines=task.baselines,
        beats_baselines=lowest > max(trivial) if trivial else None,
        chosen=best.row,
        headline=f"test {metric.replace('_', ' ')}: {scores} ({runs})",
    )


def _summarise_variant(
    variant: VariantInputs, seeds: Sequence[SeedResult], info: TaskInfo
) -> VariantResult:
    def average(scores: list[float], name: str) -> statistics.Estimate:
        return statistics.estimate(
            independent_scores(scores, len(variant.pretrains)), metric_range(name)
        )

    metric, first = info.metric, seeds[0]
    return VariantResult(
        estimates={name: average([each.test[name] for each in seeds], name) for name in first.test},
        finetune=variant.finetune,
        selection=variant.selection,
        pretraining=variant.cost,
        cut=first.cut,
        noise={
            rate: average([each.noise[rate][metric] for each in seeds], metric)
            for rate in first.noise
        },
    )


def _summarise_rival(
    run: RivalRun, draws: statistics.BootstrapDraws, settings: EvaluateConfig, metric: str
) -> RivalResult:
    low, high = np.quantile(draws.resampled, [0.025, 0.975])
    test = run.scores["test"]
    return RivalResult(
        name=run.name,
        strength=run.strength,
        validation=run.scores["validation"],
        test=test,
        estimate=statistics.Estimate(test[metric], float(low), float(high), len(run.predictions)),
        noise={f"{rate:g}": run.scores[noise_split(rate)][metric] for rate in settings.noise or []},
        seconds=run.seconds,
        predict_seconds=run.predict_seconds,
    )


def _pair_differences(
    by_variant: Mapping[str, Sequence[SeedResult]],
    rivals: Mapping[str, RivalRun],
    draws: Mapping[str, statistics.BootstrapDraws],
    info: TaskInfo,
    settings: EvaluateConfig,
) -> tuple[PairedDifference, ...]:
    """First minus second variant for every pair, over the pretrainings that both have, then every
    variant minus every rival, which counts as having as many runs with the same score."""
    bounds = metric_range(info.metric)
    scores = {name: [seed.test[info.metric] for seed in each] for name, each in by_variant.items()}
    differences = []
    pairs = [*itertools.combinations(by_variant, 2), *itertools.product(by_variant, rivals)]
    for first, second in pairs:
        own, other, other_scores = draws[first], draws[second], scores.get(second)
        if other_scores is None:
            runs = len(by_variant[first])
            other_scores = [rivals[second].scores["test"][info.metric]] * runs
            other = statistics.BootstrapDraws(
                np.repeat(other.observed, runs), np.repeat(other.resampled, runs, axis=1)
            )
        runs = min(len(scores[first]), len(other_scores))
        pretrainings = runs // settings.num_seeds
        bootstrap = statistics.paired_draws(own, other, settings.first_seed, bounds, pretrainings)
        ours, others = (
            independent_scores(each[:runs], pretrainings) for each in (scores[first], other_scores)
        )
        old, new = float(np.mean(others)), float(np.mean(ours))
        differences.append(
            PairedDifference(
                first=first,
                second=second,
                seeds=statistics.paired_difference(ours, others, bounds),
                bootstrap=bootstrap,
                error_reduction=(new - old) / (1 - old) if old < 1 else None,
            )
        )
    return tuple(differences)
