"""The fine-tuning runs of an evaluation: one Ray task for each variant and seed, whose result is
stored when it ends, so that a killed stage resumes with the missing ones."""

import gc
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.errors import UserError, find_user_error
from rungwise.core.stages.artifact import Artifact, read_note, write_note
from rungwise.core.stages.stage import Context, Reporter, Title
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.summary import PretrainingCost, SeedRow, Selection
from rungwise.finetune import FinetuneConfig, describe, evaluate, finetune, load_data
from rungwise.models.device import return_freed_memory, use_threads
from rungwise.tasks.data import cutting
from rungwise.tasks.data.files import noise_split
from rungwise.tasks.kinds.examples import SPLITS
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import save_tensors
from rungwise.tuning.record import SweepSummary


@dataclass(frozen=True)
class VariantInputs:
    """A variant with its fine-tuning and its pretrainings, which differ only in their seed."""

    name: str
    finetune: FinetuneConfig
    tokenizer: Artifact
    pretrains: tuple[Artifact, ...]
    selection: Selection | None

    @property
    def cost(self) -> PretrainingCost | None:
        if self.finetune.initialisation == "random":
            return None
        summary = PretrainSummary.of(self.pretrains[0])
        return PretrainingCost(
            objective=summary.objective,
            steps=None if summary.gradient is None else summary.gradient.steps,
            tokens=summary.tokens,
            flops=summary.flops,
            parameters=summary.parameters,
            fingerprint=self.pretrains[0].fingerprint,
        )

    def file_stem(self, seed: int, inputs: Mapping[str, Artifact]) -> str:
        """The name of a seed's files, by the settings, which a rebuilt sweep changes."""
        facts = {"settings": self.finetune, "inputs": [a.fingerprint for a in inputs.values()]}
        return f"{self.name}-{seed}-{fingerprint(facts)}"


def input_name(stage: str, variant: str, seed: int | None = None) -> str:
    """The name of the input from `stage` for a variant; `seed` indexes the pretrainings after the
    first."""
    return str(Title(stage, variant=variant, seed=seed))


def resolve_variant(
    name: str, finetune: FinetuneConfig, inputs: Mapping[str, Artifact]
) -> VariantInputs:
    """The variant with its artifacts; a sweep's winner replaces `finetune`."""
    selection = None
    if sweep := inputs.get(input_name("sweep", name)):
        summary = SweepSummary.of(sweep)
        best = summary.best
        finetune = best.finetune
        selection = Selection(score=summary.best_score, trial=best.name, seed=best.seed)
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


class SeedResult(SeedRow):
    """A row with what only this stage needs; `cut` is empty if not counted."""

    files: str
    model: dict[str, Any]
    cut: dict[str, float]

    @property
    def row(self) -> SeedRow:
        return SeedRow(**self.model_dump(exclude={"files", "model", "cut"}))


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
