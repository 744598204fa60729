"""Evaluate stage: compare variants on the test split of one task, all with the same new seeds.

    variant, seed ──> fine-tune ──> scores and predictions ──┬──> means with 95 % intervals
    rival ──> scikit-learn ──> scores and predictions ───────┴──> differences of all pairs

A swept variant uses the settings of the sweep's winner, whose own score, a maximum over trials, is
too high; new seeds and a test split that selected nothing avoid this bias. Variants share seeds so
that differences can be paired. A rival (rivals.py) learns once from the same examples; it is paired
with every seed of a variant, on the same test examples.

Test examples that a model has met before: in the training split, or in the text it was
pretrained on; and its score without them.

An example stands in the training split if one there has the same input. It stands in a text if all
its runs of `RUN` words do, whatever the punctuation (corpus/cleaning/overlap.py); one of
fewer words is not searched for, because it may stand in any text.

N test examples
"""

import itertools
import json
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact, chain
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.cleaning.overlap import find_texts
from rungwise.corpus.summary import CORPORA, read_split
from rungwise.evaluation.comparison.config import CompareConfig, EvaluateConfig
from rungwise.evaluation.comparison.errors import prediction_rows, write_predictions
from rungwise.evaluation.comparison.rivals import RivalRun, start_rivals
from rungwise.evaluation.comparison.seeds import (
    SeedJob,
    SeedResult,
    VariantInputs,
    load_predictions,
    resolve_variant,
    score_seeds,
)
from rungwise.evaluation.comparison.summary import (
    EvaluateSummary,
    Overlap,
    PairedDifference,
    RivalResult,
    VariantResult,
    independent_scores,
)
from rungwise.evaluation.statistics import (
    BootstrapDraws,
    Estimate,
    draw_values,
    error_reduction,
    estimate,
    paired_difference,
    paired_draws,
)
from rungwise.finetune import DESCRIPTION
from rungwise.tasks.data.files import find_overlap, noise_split
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskInfo, TaskSummary, read_examples
from rungwise.tasks.scoring.metrics import format_metric, metric_range
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.tokenizer import load_reader
from rungwise.training.tensor_files import MODEL, load_tensors, save_tensors

RUN = 8


def find_met(
    variants: Mapping[str, VariantInputs], task: Artifact, examples: Sequence[Example]
) -> dict[str, tuple[Overlap, NDArray[np.bool_]]]:
    """Return the overlap of each variant, and which test examples (N,) it has not met before."""
    trained = find_overlap(read_examples(task, "train"), examples)
    texts = [" ".join(example.parts) for example in examples]
    by_corpora: dict[tuple[str, ...], NDArray[np.bool_]] = {}
    result = {}
    for name, variant in variants.items():
        in_pretraining = np.zeros(len(examples), dtype=bool)
        has_corpora = True
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
        counts = Overlap(
            training=int(trained.sum()),
            pretraining=int(in_pretraining.sum()) if has_corpora else None,
        )
        result[name] = (counts, ~(trained | in_pretraining))
    return result


_SCRATCH = ".seeds"

SeedResults = Mapping[str, Sequence[SeedResult]]  # by variant


def compare_variants(
    config: CompareConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> EvaluateSummary:
    """Score every variant with every seed; keep the model of `evaluate.keep` best on validation.

    Inputs: the task, and for each variant its tokenizer and pretraining (several if a sweep varied
    earlier blocks) and its sweep, if any; see `input_name`.
    """
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
    started = start_rivals(inputs["task"], settings.noise or []) if settings.rivals else []
    seeds = score_seeds(jobs, context, metric, notes_cut=config.budget is None)
    rivals: dict[str, RivalRun] = {run.short: run for run in ray.get(started)}
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
    kind, rows, sums_by_seed = task_kind(task.info), [], {name: [] for name in variants}
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
        for name, (overlap, fresh) in find_met(variants, inputs["task"], examples).items():
            if fresh.any():
                totals = sums[name][:, fresh].sum(axis=1)
                overlap = overlap.model_copy(update={"score": float(kind.value(totals).mean())})
            results[name] = results[name].model_copy(update={"overlap": overlap})
    seed, resamples = settings.first_seed, settings.bootstrap_resamples
    values = draw_values([*sums.values()], kind.value, seed, resamples)
    draws = dict(zip(sums, values, strict=True))
    differences = _pair_differences(by_variant, rivals, draws, task.info, settings)
    write_predictions(rows, output)
    _keep_model(best, variants[best.variant].tokenizer, output)
    scratch.remove()
    for name, result in results.items():
        if result.noise:
            context.report.note(_noise_note(name, result, metric))
    trivial = [scores[metric] for scores in task.baselines.values() if metric in scores]
    lowest = results[first].estimates[metric].low
    scores_shown = {name: each.estimates[metric].mean for name, each in results.items()}
    scores_shown |= {name: run.scores["test"][metric] for name, run in rivals.items()}
    means = ", ".join(
        f"{name} {format_metric(mean, metric)}" for name, mean in scores_shown.items()
    )
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
        headline=f"test {metric.replace('_', ' ')}: {means} ({_describe_runs(variants, settings)})",
    )


def _summarise_variant(
    variant: VariantInputs, seeds: Sequence[SeedResult], info: TaskInfo
) -> VariantResult:
    metric, first, pretrainings = info.metric, seeds[0], len(variant.pretrains)
    return VariantResult(
        estimates={
            name: estimate(
                independent_scores([seed.test[name] for seed in seeds], pretrainings),
                metric_range(name),
            )
            for name in first.test
        },
        finetune=variant.finetune,
        selection=variant.selection,
        pretraining=variant.cost,
        cut=first.cut,
        noise={
            rate: estimate(
                independent_scores([seed.noise[rate][metric] for seed in seeds], pretrainings),
                metric_range(metric),
            )
            for rate in first.noise
        },
    )


def _summarise_rival(
    run: RivalRun, draws: BootstrapDraws, settings: EvaluateConfig, metric: str
) -> RivalResult:
    low, high = np.quantile(draws.resampled, [0.025, 0.975])
    test = run.scores["test"]
    return RivalResult(
        name=run.name,
        strength=run.strength,
        validation=run.scores["validation"],
        test=test,
        estimate=Estimate(test[metric], float(low), float(high), len(run.predictions)),
        noise={f"{rate:g}": run.scores[noise_split(rate)][metric] for rate in settings.noise or []},
        seconds=run.seconds,
    )


def _pair_differences(
    by_variant: SeedResults,
    rivals: Mapping[str, RivalRun],
    draws: Mapping[str, BootstrapDraws],
    info: TaskInfo,
    settings: EvaluateConfig,
) -> tuple[PairedDifference, ...]:
    """First minus second variant for every pair, then every variant minus every rival.

    Student's t interval covers the randomness of pretraining, or of fine-tuning alone if there is
    one pretraining; the bootstrap also resamples test examples and so covers the choice of the test
    split. Pretrainings that only one of the two has are left out. A rival counts as one that has as
    many runs as the variant, with the same score each time.
    """
    bounds = metric_range(info.metric)
    scores = {name: [seed.test[info.metric] for seed in each] for name, each in by_variant.items()}
    differences = []
    pairs = [*itertools.combinations(by_variant, 2), *itertools.product(by_variant, rivals)]
    for first, second in pairs:
        own, other, other_scores = draws[first], draws[second], scores.get(second)
        if other_scores is None:
            runs = len(by_variant[first])
            other_scores = [rivals[second].scores["test"][info.metric]] * runs
            other = BootstrapDraws(
                np.repeat(other.observed, runs), np.repeat(other.resampled, runs, axis=1)
            )
        runs = min(len(scores[first]), len(other_scores))
        pretrainings = runs // settings.num_seeds
        bootstrap = paired_draws(own, other, settings.first_seed, bounds, pretrainings)
        ours, others = (
            independent_scores(each[:runs], pretrainings) for each in (scores[first], other_scores)
        )
        old, new = float(np.mean(others)), float(np.mean(ours))
        differences.append(
            PairedDifference(
                first=first,
                second=second,
                seeds=paired_difference(ours, others, bounds),
                bootstrap=bootstrap,
                error_reduction=error_reduction(old, new) if old < 1 else None,
            )
        )
    return tuple(differences)


def _keep_model(best: SeedResult, tokenizer: Artifact, output: Folder) -> None:
    save_tensors(output, MODEL, load_tensors(output / _SCRATCH, f"{best.files}.safetensors"))
    output.write_bytes(DESCRIPTION, json.dumps(best.model, indent=1).encode("utf-8"))
    output.write_bytes(TOKENIZER_FILE, load_reader(tokenizer.folder).to_str().encode())


def _describe_runs(variants: Mapping[str, VariantInputs], settings: EvaluateConfig) -> str:
    """`5 seeds`, or `3 pretrainings, 5 seeds each`."""
    most = max(len(variant.pretrains) for variant in variants.values())
    return (
        f"{most} pretrainings, {settings.num_seeds} seeds each"
        if most > 1
        else f"{settings.num_seeds} seeds"
    )


def _noise_note(name: str, result: VariantResult, metric: str) -> str:
    clean = format_metric(result.estimates[metric].mean, metric)
    noisy = ", ".join(
        f"in {100 * float(rate):g}% {format_metric(each.mean, metric)} "
        f"[{format_metric(each.low, metric)}, {format_metric(each.high, metric)}]"
        for rate, each in result.noise.items()
    )
    return (
        f"{name}: test {metric.replace('_', ' ')} {clean}; with a typing error in "
        f"so many of its longer words: {noisy}"
    )
