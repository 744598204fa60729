"""Evaluate stage: compare variants on the test split of one task, all with the same new seeds,
which avoid the bias of a sweep's winner, and beside rivals: what people use without pretraining. A
fine-tuning run is one Ray task for each variant and seed, whose result is stored when it ends, so
that a killed stage resumes with the missing ones."""

import gc
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.errors import DataError, UserError, find_user_error
from rungwise.core.stages.artifact import Artifact, Inputs, chain, read_note, write_note
from rungwise.core.stages.stage import Context, Reporter
from rungwise.core.storage.folder import Folder
from rungwise.corpus.cleaning.overlap import find_texts
from rungwise.corpus.summary import CORPORA, read_split
from rungwise.evaluation import statistics
from rungwise.evaluation.comparison import summary
from rungwise.evaluation.comparison.errors import prediction_rows, write_predictions
from rungwise.evaluation.comparison.summary import independent_scores, input_name
from rungwise.finetune import DESCRIPTION, FinetuneConfig, describe, evaluate, finetune, load_data
from rungwise.models.device import return_freed_memory, use_threads
from rungwise.tasks.data import cutting
from rungwise.tasks.data.files import find_overlap, noise_split, read_splits
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import SPLITS, Example, TaskInfo, TaskSummary, read_examples
from rungwise.tasks.kinds.kind import Outputs
from rungwise.tasks.kinds.rivals import row_items
from rungwise.tasks.scoring.metrics import format_metric, metric_range
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.tokenizer import load_reader
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL, load_tensors, save_tensors
from rungwise.tuning.trials import SweepSummary

RUN = 8  # words: an example stands in a text if all its runs of so many do
_SCRATCH = ".seeds"


@dataclass(frozen=True)
class VariantInputs:
    """A variant with its fine-tuning and its pretrainings, which differ only in their seed."""

    name: str
    finetune: FinetuneConfig
    tokenizer: Artifact
    pretrains: tuple[Artifact, ...]
    selection: summary.Selection | None

    @property
    def cost(self) -> summary.PretrainingCost | None:
        if self.finetune.initialisation == "random":
            return None
        trained = PretrainSummary.of(self.pretrains[0])
        return summary.PretrainingCost(
            objective=trained.objective,
            steps=None if trained.gradient is None else trained.gradient.steps,
            tokens=trained.tokens,
            flops=trained.flops,
            parameters=trained.parameters,
            fingerprint=self.pretrains[0].fingerprint,
        )

    def file_stem(self, seed: int, inputs: Inputs) -> str:
        """The name of a seed's files, by the settings, which a rebuilt sweep changes."""
        facts = {"settings": self.finetune, "inputs": [a.fingerprint for a in inputs.values()]}
        return f"{self.name}-{seed}-{fingerprint(facts)}"


def resolve_variant(name: str, finetune: FinetuneConfig, inputs: Inputs) -> VariantInputs:
    """The variant with its artifacts; a sweep's winner replaces `finetune`."""
    selection = None
    if sweep := inputs.get(input_name("sweep", name)):
        tuned = SweepSummary.of(sweep)
        best = tuned.best
        finetune = best.finetune
        selection = summary.Selection(score=tuned.best_score, trial=best.name, seed=best.seed)
    tokenizer, first = (inputs[input_name(stage, name)] for stage in ("tokenizer", "pretrain"))
    pretrains = [first]
    while (key := input_name("pretrain", name, seed=len(pretrains))) in inputs:
        pretrains.append(inputs[key])
    return VariantInputs(name, finetune, tokenizer, tuple(pretrains), selection)


@dataclass(frozen=True)
class SeedJob:
    """One fine-tuning run of the n-th `pretraining` of a variant. `files` is the stem of its files
    in `scratch`; `counts_cut` asks for what `sequence_length` truncates."""

    variant: VariantInputs
    task: Artifact
    seed: int
    noise: Sequence[float]
    counts_cut: bool
    scratch: Folder
    files: str
    report: Reporter
    pretraining: int = 0


class SeedResult(summary.SeedRow):
    """A row with what only this stage needs; `cut` is empty if not counted."""

    files: str
    model: dict[str, Any]
    cut: dict[str, float]

    @property
    def row(self) -> summary.SeedRow:
        return summary.SeedRow(**self.model_dump(exclude={"files", "model", "cut"}))


def score_seeds(
    jobs: Sequence[SeedJob], context: Context, metric: str, *, notes_cut: bool
) -> list[SeedResult]:
    """Run all jobs that no earlier attempt finished; results in the order of variants and seeds.
    `notes_cut`: say what the variants truncate once all first seeds are done."""
    import ray

    cpus, gpus = context.compute.cpus_per_trial, context.compute.gpus_per_trial
    score = ray.remote(num_cpus=cpus, num_gpus=gpus)(score_seed)
    results: list[SeedResult] = []
    pending: dict[Any, str] = {}
    for job in jobs:
        if note := read_note(job.scratch, f"{job.files}.json"):
            results.append(SeedResult.model_validate(note))
        else:
            pending[score.remote(job, cpus)] = job.files
    counting = {(job.variant.name, job.seed): job.variant for job in jobs if job.counts_cut}
    waiting = list(pending)
    while waiting:
        ready, waiting = ray.wait(waiting)
        try:
            results += ray.get(ready)
        except Exception as error:
            if mendable := find_user_error(error):
                raise UserError(f"{pending[ready[0]]}: {mendable}") from error
            raise
        first = [each for each in results if (each.variant, each.seed) in counting]
        if notes_cut and len(first) == len(counting):
            notes_cut = False
            for line in _cut_notes({v.name: v for v in counting.values()}, first):
                context.report.note(line)
        context.report.progress(len(results), len(jobs), **{metric: results[-1].test[metric]})
    order = list(dict.fromkeys(job.variant.name for job in jobs))
    return sorted(results, key=lambda each: (order.index(each.variant), each.seed))


def score_seed(job: SeedJob, cpus: float) -> SeedResult:
    """Fine-tune with one seed; write the row, the predictions and the weights."""
    use_threads(cpus)
    config, report, scratch = job.variant.finetune, job.report, job.scratch
    name = f"{job.variant.name}-seed-{job.seed}"
    parameters = {"variant": job.variant.name, "seed": job.seed}
    report.nested(name, parameters | config.model_dump(mode="json"))
    start = time.monotonic()
    pretrain = job.variant.pretrains[job.pretraining]
    data = load_data(job.task, job.variant.tokenizer, pretrain, config, job.noise)
    cut = {}
    if job.counts_cut:
        for split in SPLITS:
            examples, items = data.splits[split].examples, data.splits[split].items
            cut[split] = cutting.measure_cut(examples, items)
    best_epoch = config.epochs

    def on_epoch(epoch: int, scores: dict[str, float], state: object = None) -> None:
        nonlocal best_epoch
        best_epoch = int(scores["kept/epoch"])
        values = {f"validation/{k}": v for k, v in scores.items() if "/" not in k}
        report.metrics(values, epoch, run=name)

    # With few labels, scoring every epoch takes longer than training.
    model = finetune(config, data, job.seed, on_epoch if config.best_epoch else None)
    scores = {"validation": evaluate(model, data, "validation")}
    before_test = time.monotonic()
    scores["test"] = evaluate(model, data, "test")
    predict_seconds = time.monotonic() - before_test
    noise = {rate: evaluate(model, data, noise_split(rate)).metrics for rate in job.noise}
    metrics = {f"test/{k}": v for k, v in scores["test"].metrics.items()}
    if not config.best_epoch:
        metrics |= {f"validation/{k}": v for k, v in scores["validation"].metrics.items()}
    for rate, values in noise.items():
        metrics |= {f"test_{noise_split(rate)}/{k}": v for k, v in values.items()}
    report.metrics(metrics | {"kept_epoch": best_epoch}, best_epoch, run=name)
    weights_file, predictions_file = f"{job.files}.safetensors", f"{job.files}.predictions"
    save_tensors(scratch, weights_file, model.state_dict())
    predictions = add_probabilities(scores["test"].predictions, scores["test"].probabilities)
    lines = "".join(json.dumps(each) + "\n" for each in predictions)
    scratch.write_bytes(predictions_file, lines.encode("utf-8"))
    result = SeedResult(
        variant=job.variant.name,
        seed=job.seed,
        pretraining=job.pretraining,
        epoch=best_epoch,
        **{split: {**each.metrics, "loss": each.loss} for split, each in scores.items()},
        mix=None if model.mix is None else model.mix.shares(),
        model=describe(model),
        noise={f"{rate:g}": values for rate, values in noise.items()},
        files=job.files,
        cut=cut,
        seconds=round(time.monotonic() - start, 1),
        predict_seconds=round(predict_seconds, 6),
    )
    digests = {file: scratch.sha256(file) for file in (weights_file, predictions_file)}
    write_note(scratch, f"{job.files}.json", json.loads(result.model_dump_json()), digests)
    report.nested(name, {}, "FINISHED")
    report.flush()
    del model, data, scores
    return_freed_memory()  # Ray keeps this process
    gc.freeze()  # the next search for garbage leaves out what is left: modules, kept data
    return result


def add_probabilities(
    predictions: Sequence[dict[str, Any]], probabilities: Sequence[Any]
) -> list[dict[str, Any]]:
    """The predictions with their probabilities, where a kind has some."""
    return [
        each if shares is None else {**each, "probabilities": shares}
        for each, shares in zip(predictions, probabilities, strict=True)
    ]


def load_predictions(scratch: Folder, result: SeedResult) -> list[dict[str, Any]]:
    lines = scratch.read_bytes(f"{result.files}.predictions").decode("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _cut_notes(variants: Mapping[str, VariantInputs], results: Sequence[SeedResult]) -> list[str]:
    """Notes on what variants cut, without their names where all cut alike."""
    names: dict[str, list[str]] = {}
    for each in results:
        length = variants[each.variant].finetune.sequence_length
        if line := cutting.note(length, each.cut):
            names.setdefault(line, []).append(each.variant)
    return [
        line if len(alike) == len(results) else f"{', '.join(alike)}: {line}"
        for line, alike in names.items()
    ]


def find_overlaps(
    variants: Mapping[str, VariantInputs], task: Artifact, examples: Sequence[Example]
) -> dict[str, tuple[summary.Overlap, NDArray[np.bool_]]]:
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
        counts = summary.Overlap(training=int(in_training.sum()), pretraining=count)
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


def compare_variants(
    config: summary.CompareConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> summary.EvaluateSummary:
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
    return summary.EvaluateSummary(
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
) -> summary.VariantResult:
    def average(scores: list[float], name: str) -> statistics.Estimate:
        return statistics.estimate(
            independent_scores(scores, len(variant.pretrains)), metric_range(name)
        )

    metric, first = info.metric, seeds[0]
    return summary.VariantResult(
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
    run: RivalRun, draws: statistics.Bootstrap, settings: summary.EvaluateConfig, metric: str
) -> summary.RivalResult:
    low, high = np.quantile(draws.resampled, [0.025, 0.975])
    test = run.scores["test"]
    return summary.RivalResult(
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
    draws: Mapping[str, statistics.Bootstrap],
    info: TaskInfo,
    settings: summary.EvaluateConfig,
) -> tuple[summary.PairedDifference, ...]:
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
            other = statistics.Bootstrap(
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
            summary.PairedDifference(
                first=first,
                second=second,
                seeds=statistics.paired_difference(ours, others, bounds),
                bootstrap=bootstrap,
                error_reduction=(new - old) / (1 - old) if old < 1 else None,
            )
        )
    return tuple(differences)
