"""Evaluate stage: compare variants on the test split of one task, all with the same new seeds.

    variant, seed ──> fine-tune ──> scores and predictions ──┬──> means with 95 % intervals
                                                             └──> differences of all pairs

A swept variant uses the settings of the sweep's winner, whose own score, a maximum over trials, is
too high; new seeds and a test split that selected nothing avoid this bias. Variants share seeds so
that differences can be paired.

Each (variant, seed) stores its result in the artifact's folder when it finishes, so a killed stage
resumes with the missing ones.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import Config
from rungwise.core.errors import UserError, user_error_in
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, Reporter
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.title import Title
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison import predictions
from rungwise.evaluation.comparison.published import PublishedConfig
from rungwise.evaluation.comparison.summary import (
    EvaluateSummary,
    PairedDifference,
    PretrainingCost,
    SeedRow,
    Selection,
    VariantResult,
)
from rungwise.evaluation.statistics import (
    error_reduction,
    estimate,
    paired_bootstrap,
    paired_difference,
)
from rungwise.finetune import DESCRIPTION, FinetuneConfig, describe, evaluate, finetune, load_data
from rungwise.pretraining.summary import PretrainSummary
from rungwise.sweep.record import SweepSummary
from rungwise.tasks.data import cutting
from rungwise.tasks.data.cutting import CutShare
from rungwise.tasks.data.noise import noise_split
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import SPLITS, TaskInfo, TaskSummary, read_examples
from rungwise.tasks.scoring.metrics import metric_range
from rungwise.tasks.scoring.units import shown
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.training.tensor_files import MODEL, load_tensors, save_tensors

_SCRATCH = ".seeds"


class EvaluateConfig(Config):
    """The final comparison of the variants on each task, over several seeds.

    Five is the number of restarts behind the BERT paper's CoNLL-2003 figures.
    """

    num_seeds: int = Field(default=5, ge=2)  # fine-tuning runs per variant, each with its own seed
    first_seed: int = Field(default=1000, ge=0)  # the first of consecutive seeds
    # numbers of labelled examples to compare at, besides all of them; null: none
    label_budgets: list[int] | None = None
    # shares of the words (of four or more letters) to misspell in copies of the test split, which
    # are scored too; null: none
    noise: list[Annotated[float, Field(gt=0, le=1)]] | None = None
    # resamples behind a confidence interval
    bootstrap_resamples: int = Field(default=10_000, ge=100)
    published: PublishedConfig | None = None  # published results to show beside ours; null: none
    # variant whose model is kept and registered, from its best seed on validation; null: the first
    keep: str | None = None

    @property
    def seeds(self) -> list[int]:
        """The seeds that every variant is fine-tuned with."""
        return list(range(self.first_seed, self.first_seed + self.num_seeds))

    @model_validator(mode="after")
    def _budgets(self) -> EvaluateConfig:
        budgets = self.label_budgets or []
        if len({*(self.noise or [])}) < len(self.noise or []):
            raise ValueError(f"noise must be different shares, found {self.noise}")
        if any(budget < 1 for budget in budgets) or len(set(budgets)) < len(budgets):
            raise ValueError(f"label_budgets must be different numbers from 1, found {budgets}")
        return self


class CompareConfig(Config):
    """The variants by name, each with its fine-tuning where no sweep has chosen one."""

    task: str
    budget: int | None
    variants: dict[str, FinetuneConfig] = Field(min_length=1)
    evaluate: EvaluateConfig


def compare_variants(
    config: CompareConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> EvaluateSummary:
    """Score every variant with every seed; keep the model of `evaluate.keep` best on validation.

    Inputs: the task, and for each variant its tokenizer and pretraining (several if a sweep varied
    earlier blocks) and its sweep, if any; see `input_name`.
    """
    settings = config.evaluate
    seeds = settings.seeds
    chosen = {name: _settings(config, inputs, name) for name in config.variants}
    task = TaskSummary.of(inputs["task"])
    info = task.info
    scratch = output / _SCRATCH
    rows = _rows(config, chosen, inputs, seeds, scratch, context)
    rows_of = {name: [row for row in rows if row.variant == name] for name in config.variants}
    variants = {
        name: VariantResult(
            estimates={
                metric: estimate([row.test[metric] for row in of_variant], metric_range(metric))
                for metric in of_variant[0].test
            },
            finetune=chosen[name],
            selection=_selection(inputs, name),
            pretraining=_pretraining(source_of(inputs, "pretrain", name), chosen[name]),
            cut=of_variant[0].cut,
            noise={
                rate: estimate(
                    [row.noise[rate][info.metric] for row in of_variant],
                    metric_range(info.metric),
                )
                for rate in of_variant[0].noise
            },
        )
        for name, of_variant in rows_of.items()
    }
    first = next(iter(config.variants))
    best = min(
        rows_of[settings.keep or first],
        key=lambda row: (-row.validation[info.metric], row.validation["loss"], row.seed),
    )
    differences = _differences(
        rows_of, read_examples(inputs["task"], "test"), info, settings, scratch
    )
    _keep(rows, best, inputs, output)
    for name, result in variants.items():
        if result.noise:
            context.report.note(_noise_note(name, result, info.metric))
    trivial = max(
        (scores[info.metric] for scores in task.baselines.values() if info.metric in scores),
        default=None,
    )
    lowest = variants[first].estimates[info.metric].low
    return EvaluateSummary(
        task=config.task,
        budget=config.budget,
        kind=info.kind,
        metric=info.metric,
        seeds=tuple(seeds),
        examples=task.examples,
        rows=tuple(row.shown() for row in rows),
        variants=variants,
        differences=differences,
        baselines=task.baselines,
        beats_baselines=None if trivial is None else lowest > trivial,
        chosen=best.shown(),
        headline=_headline(variants, info.metric, len(seeds)),
    )


EVALUATE = StageType("evaluate", 9, compare_variants, EvaluateSummary, resumes=True)


class _ScoredSeed(SeedRow):
    """A row with what only this stage needs; `cut` is counted for the first seed only."""

    files: str
    model: dict[str, Any]
    cut: dict[str, CutShare]

    def shown(self) -> SeedRow:
        return SeedRow(**self.model_dump(exclude={"files", "model", "cut"}))


def input_name(stage: str, variant: str, number: int | None = None) -> str:
    """The name of the input from `stage` for a variant; `number` indexes upstream values."""
    return str(Title(stage, variant=variant, number=number))


def _settings(config: CompareConfig, inputs: dict[str, Artifact], name: str) -> FinetuneConfig:
    sweep = inputs.get(input_name("sweep", name))
    return config.variants[name] if sweep is None else SweepSummary.of(sweep).best.finetune


def source_of(inputs: dict[str, Artifact], stage: str, variant: str) -> Artifact:
    """The tokenizer or pretraining of a variant; the winner's if a sweep tried several."""
    only = inputs.get(input_name(stage, variant))
    if only is not None:
        return only
    best = SweepSummary.of(inputs[input_name("sweep", variant)]).best
    return inputs[input_name(stage, variant, best.upstream)]


def _rows(
    config: CompareConfig,
    chosen: dict[str, FinetuneConfig],
    inputs: dict[str, Artifact],
    seeds: list[int],
    scratch: Folder,
    context: Context,
) -> list[_ScoredSeed]:
    """One row per variant and seed, from earlier attempts or from Ray tasks."""
    import ray

    score = ray.remote(
        num_cpus=context.compute.cpus_per_trial, num_gpus=context.compute.gpus_per_trial
    )(_score)
    rows: list[_ScoredSeed] = []
    pending: dict[Any, str] = {}
    for seed, name in itertools.product(seeds, config.variants):
        # An earlier attempt may have used other settings: the sweep can have been rebuilt since.
        asked = fingerprint(
            {"settings": chosen[name], "inputs": [a.fingerprint for a in inputs.values()]}
        )
        done = f"{name}-{seed}-{asked}"
        if scratch.exists(f"{done}.json"):
            rows.append(_ScoredSeed.model_validate_json(scratch.read_bytes(f"{done}.json")))
            continue
        task = score.remote(
            chosen[name],
            {of: source_of(inputs, of, name) for of in ("tokenizer", "pretrain")}
            | {"task": inputs["task"]},
            name,
            seed,
            scratch,
            done,
            context.report,
            seed == seeds[0],
            config.evaluate.noise or [],
        )
        pending[task] = done
    metric = TaskSummary.of(inputs["task"]).info.metric
    total = len(seeds) * len(config.variants)
    waiting, unsaid = list(pending), config.budget is None
    while waiting:
        ready, waiting = ray.wait(waiting)
        try:
            rows += ray.get(ready)
        except Exception as error:
            mendable = user_error_in(error)
            if mendable is not None:
                raise UserError(f"{pending[ready[0]]}: {mendable}") from error
            raise
        firsts = [row for row in rows if row.seed == seeds[0]]
        if unsaid and len(firsts) == len(config.variants):
            unsaid = False
            for line in _cut_notes(chosen, firsts):
                context.report.note(line)
        context.report.progress(len(rows), total, **{metric: rows[-1].test[metric]})
    order = list(config.variants)
    return sorted(rows, key=lambda row: (order.index(row.variant), row.seed))


def _score(
    config: FinetuneConfig,
    inputs: dict[str, Artifact],
    variant: str,
    seed: int,
    scratch: Folder,
    done: str,
    report: Reporter,
    counts_cut: bool,
    noise: list[float],
) -> _ScoredSeed:
    """Fine-tune with one seed in a Ray task; write the row, the predictions and the weights."""
    name = f"{variant}-seed-{seed}"
    report.nested(name, {"variant": variant, "seed": seed, **config.model_dump(mode="json")})
    began = time.monotonic()
    data = load_data(inputs["task"], inputs["tokenizer"], inputs["pretrain"], config, noise)
    cut = {}
    if counts_cut:
        cut = {
            name: cutting.cut_share(
                data.splits[name].examples,
                data.splits[name].items,
                data.tokenizer,
                data.info.kind,
            )
            for name in SPLITS
        }
    kept = config.epochs

    def on_epoch(epoch: int, scores: dict[str, float], state: object = None) -> None:
        nonlocal kept
        kept = int(scores["kept/epoch"])
        shown = {f"validation/{k}": v for k, v in scores.items() if "/" not in k}
        report.metrics(shown, epoch, run=name)

    # With few labels, scoring every epoch takes longer than training.
    model = finetune(config, data, seed, on_epoch if config.best_epoch else None)
    scores = {split: evaluate(model, data, split) for split in ("validation", "test")}
    of_noise = {rate: evaluate(model, data, noise_split(rate)).metrics for rate in noise}
    logged = {f"test/{k}": v for k, v in scores["test"].metrics.items()}
    if not config.best_epoch:
        logged |= {f"validation/{k}": v for k, v in scores["validation"].metrics.items()}
    for rate, found in of_noise.items():
        logged |= {f"test_{noise_split(rate)}/{k}": v for k, v in found.items()}
    report.metrics(logged | {"kept_epoch": kept}, kept, run=name)
    save_tensors(scratch, f"{done}.safetensors", model.state_dict())
    shares = scores["test"].probabilities
    predicted = [
        each if share is None else {**each, "probabilities": share}
        for each, share in zip(scores["test"].predictions, shares, strict=True)
    ]
    scratch.write_bytes(f"{done}.predictions", _json_lines(predicted))
    row = _ScoredSeed(
        variant=variant,
        seed=seed,
        epoch=kept,
        **{split: {**each.metrics, "loss": each.loss} for split, each in scores.items()},
        mix=None if model.mix is None else model.mix.shares(),
        model=describe(model),
        noise={f"{rate:g}": found for rate, found in of_noise.items()},
        files=done,
        cut=cut,
        seconds=round(time.monotonic() - began, 1),
    )
    scratch.write_bytes(f"{done}.json", row.model_dump_json().encode("utf-8"))
    report.nested(name, {}, "FINISHED")
    report.flush()
    return row


def _differences(
    rows_of: dict[str, list[_ScoredSeed]],
    examples: list[Any],
    info: TaskInfo,
    settings: EvaluateConfig,
    scratch: Folder,
) -> tuple[PairedDifference, ...]:
    """First minus second variant for every pair.

    Student's t interval covers the randomness of fine-tuning; the bootstrap also resamples test
    examples and so covers the choice of the test split.
    """
    scores = {name: [row.test[info.metric] for row in rows] for name, rows in rows_of.items()}
    kind = task_kind(info)
    # (S, N, k): the contribution of each test example to the metric, per seed
    sums = {
        name: np.stack([kind.sums(_predictions(scratch, row.files), examples) for row in rows])
        for name, rows in rows_of.items()
    }
    differences = []
    for first, second in itertools.combinations(rows_of, 2):
        drawn = paired_bootstrap(
            sums[first],
            sums[second],
            value=kind.value,
            seed=settings.first_seed,
            resamples=settings.bootstrap_resamples,
            within=metric_range(info.metric),
        )
        old, new = float(np.mean(scores[second])), float(np.mean(scores[first]))
        differences.append(
            PairedDifference(
                first=first,
                second=second,
                seeds=paired_difference(scores[first], scores[second], metric_range(info.metric)),
                bootstrap=drawn,
                error_reduction=error_reduction(old, new) if old < 1 else None,
            )
        )
    return tuple(differences)


def _keep(
    rows: list[_ScoredSeed], best: _ScoredSeed, inputs: dict[str, Artifact], output: Folder
) -> None:
    """Keep every prediction and the chosen model with its tokenizer; remove the scratch folder."""
    scratch = output / _SCRATCH
    examples = read_examples(inputs["task"], "test")
    kept = [
        line
        for row in rows
        for line in predictions.rows(
            row.variant, row.seed, examples, _predictions(scratch, row.files)
        )
    ]
    predictions.write(kept, output)
    save_tensors(output, MODEL, load_tensors(scratch, f"{best.files}.safetensors"))
    output.write_bytes(DESCRIPTION, json.dumps(best.model, indent=1).encode("utf-8"))
    tokenizer = source_of(inputs, "tokenizer", best.variant)
    output.write_bytes(TOKENIZER_FILE, tokenizer.folder.read_bytes(TOKENIZER_FILE))
    scratch.remove()


def _selection(inputs: dict[str, Artifact], name: str) -> Selection | None:
    sweep = inputs.get(input_name("sweep", name))
    if sweep is None:
        return None
    best = SweepSummary.of(sweep).best
    return Selection(score=best.score, trial=best.name, seed=best.seed)


def _pretraining(pretrain: Artifact, settings: FinetuneConfig) -> PretrainingCost | None:
    if settings.initialisation == "random":
        return None
    summary = PretrainSummary.of(pretrain)
    return PretrainingCost(
        objective=summary.objective,
        steps=None if summary.gradient is None else summary.gradient.steps,
        tokens=summary.tokens,
        flops=summary.flops,
        parameters=summary.parameters,
        fingerprint=pretrain.fingerprint,
    )


def _headline(variants: dict[str, VariantResult], metric: str, num_seeds: int) -> str:
    scores = ", ".join(
        f"{name} {shown(result.estimates[metric].mean, metric)}"
        for name, result in variants.items()
    )
    return f"test {metric.replace('_', ' ')}: {scores} ({num_seeds} seeds)"


def _cut_notes(chosen: dict[str, FinetuneConfig], rows: Sequence[_ScoredSeed]) -> list[str]:
    """Say once what several variants cut; without their names where all cut alike."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if line := cutting.note(chosen[row.variant].sequence_length, row.cut):
            names.setdefault(line, []).append(row.variant)
    return [
        line if len(these) == len(rows) else f"{', '.join(these)}: {line}"
        for line, these in names.items()
    ]


def _noise_note(name: str, result: VariantResult, metric: str) -> str:
    clean = result.estimates[metric].mean
    noisy = ", ".join(
        f"in {100 * float(rate):g}% {shown(each.mean, metric)} "
        f"[{shown(each.low, metric)}, {shown(each.high, metric)}]"
        for rate, each in result.noise.items()
    )
    return (
        f"{name}: test {metric.replace('_', ' ')} {shown(clean, metric)}; with a typing error in "
        f"so many of its longer words: {noisy}"
    )


def _predictions(scratch: Folder, done: str) -> list[dict[str, Any]]:
    lines = scratch.read_bytes(f"{done}.predictions").decode("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8")
