"""Evaluate stage: several variants on one task, with the same new seeds, on the test split.

    variant, seed ──> fine-tune ──> scores and predictions ──┬──> means with 95 % intervals
                                                             └──> every pair of variants: difference

Where a variant was swept, the settings are the sweep's winner's; its own score is the highest of
several and so too good. The seeds here are not the sweep's and the test split selected nothing, so
the winner's luck does not enter. Variants share seeds, so that a difference is taken pair by pair.

Each (variant, seed) leaves its result in the artifact's folder when it is done: a stage that was
killed goes on with those that are missing.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.artifact import Artifact
from rungwise.core.config import Config, fingerprint
from rungwise.core.context import Context, Reporter
from rungwise.core.errors import UserError, user_error_in
from rungwise.core.storage import Folder
from rungwise.evaluation.published import PublishedConfig
from rungwise.evaluation.statistics import (
    Estimate,
    error_reduction,
    estimate,
    paired_bootstrap,
    paired_difference,
)
from rungwise.finetune import DESCRIPTION, FinetuneConfig, describe, evaluate, finetune, load_data
from rungwise.pretraining.pretrained import config_of
from rungwise.tasks import metrics
from rungwise.tasks.examples import TaskInfo, read
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.training.checkpoint import MODEL, load_tensors, save_tensors

_SCRATCH = ".seeds"


class EvaluateConfig(Config):
    """How many seeds, and at which numbers of labelled examples besides all of them.

    Five is the number of restarts behind the BERT paper's CoNLL-2003 figures (SPEC T8).
    """

    num_seeds: int = Field(default=5, ge=2)
    first_seed: int = Field(default=1000, ge=0)
    label_budgets: list[int] | None = None
    bootstrap_resamples: int = Field(default=10_000, ge=100)
    published: PublishedConfig | None = None

    @property
    def seeds(self) -> list[int]:
        """The seeds that every variant is fine-tuned with."""
        return list(range(self.first_seed, self.first_seed + self.num_seeds))

    @model_validator(mode="after")
    def _budgets(self) -> EvaluateConfig:
        budgets = self.label_budgets or []
        if any(budget < 1 for budget in budgets) or len(set(budgets)) < len(budgets):
            raise ValueError(f"label_budgets must be different numbers from 1, found {budgets}")
        return self


class CompareConfig(Config):
    """The variants by name, each with its fine-tuning where no sweep has chosen one."""

    task: str
    budget: int | None
    variants: dict[str, FinetuneConfig] = Field(min_length=1)
    evaluate: EvaluateConfig


def run(
    config: CompareConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Scores of every variant and seed, and the first variant's model that is best on validation.

    Inputs: task; and for each variant tokenizer/NAME, pretrain/NAME, and sweep/NAME if it was swept
    (tokenizer/NAME@0 and so on if the sweep varied what comes before fine-tuning).
    """
    settings = config.evaluate
    seeds = settings.seeds
    chosen = {name: _settings(config, inputs, name) for name in config.variants}
    info = TaskInfo.of(inputs["task"])
    rows = _rows(config, chosen, inputs, seeds, output / _SCRATCH, context)
    sums = _sums(rows, info, inputs["task"], output / _SCRATCH)
    variants = {
        name: {
            "estimates": {
                metric: _plain(estimate([row["test"][metric] for row in _of(rows, name)]))
                for metric in _of(rows, name)[0]["test"]
            },
            "finetune": chosen[name].model_dump(mode="json"),
            "selection": _selection(inputs, name),
            "pretraining": _pretraining(source_of(inputs, "pretrain", name), chosen[name]),
        }
        for name in config.variants
    }
    first = next(iter(config.variants))
    best = min(
        _of(rows, first),
        key=lambda row: (-row["validation"][info.metric], row["validation"]["loss"], row["seed"]),
    )
    _keep(rows, best, inputs, output)
    baselines = inputs["task"].summary["baselines"]
    found = variants[first]["estimates"][info.metric]
    trivial = max(
        (scores[info.metric] for scores in baselines.values() if info.metric in scores),
        default=None,
    )
    return {
        "task": config.task,
        "budget": config.budget,
        "kind": info.kind,
        "metric": info.metric,
        "seeds": seeds,
        "examples": inputs["task"].summary["examples"],
        "rows": rows,
        "variants": variants,
        "differences": _differences(rows, sums, info, settings),
        "baselines": baselines,
        "beats_baselines": None if trivial is None else found["low"] > trivial,
        "chosen": best,
        "headline": _headline(variants, info.metric, len(seeds)),
    }


def _settings(config: CompareConfig, inputs: dict[str, Artifact], name: str) -> FinetuneConfig:
    """What the sweep of a variant chose, or the config's own where there was none."""
    sweep = inputs.get(f"sweep/{name}")
    if sweep is None:
        return config.variants[name]
    return FinetuneConfig.model_validate(sweep.summary["best"]["finetune"])


def source_of(inputs: dict[str, Artifact], of: str, name: str) -> Artifact:
    """The tokenizer or pretraining of a variant; where the sweep tried several, the winner's."""
    found = inputs.get(f"{of}/{name}")
    if found is not None:
        return found
    return inputs[f"{of}/{name}@{inputs[f'sweep/{name}'].summary['best']['upstream']}"]


def _rows(
    config: CompareConfig,
    chosen: dict[str, FinetuneConfig],
    inputs: dict[str, Artifact],
    seeds: list[int],
    scratch: Folder,
    context: Context,
) -> list[dict[str, Any]]:
    """One row a variant and seed, from earlier attempts or from Ray tasks of this one."""
    import ray

    score = ray.remote(
        num_cpus=context.compute.cpus_per_trial, num_gpus=context.compute.gpus_per_trial
    )(_score)
    rows: list[dict[str, Any]] = []
    pending: dict[Any, str] = {}
    for seed, name in itertools.product(seeds, config.variants):
        # The settings of an earlier attempt can differ: a sweep may have been built again.
        asked = fingerprint(
            {"settings": chosen[name], "inputs": [a.fingerprint for a in inputs.values()]}
        )
        done = f"{name}-{seed}-{asked}"
        if scratch.exists(f"{done}.json"):
            rows.append(json.loads(scratch.read_bytes(f"{done}.json")))
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
        )
        pending[task] = done
    metric = TaskInfo.of(inputs["task"]).metric
    total = len(seeds) * len(config.variants)
    waiting = list(pending)
    while waiting:
        ready, waiting = ray.wait(waiting)
        try:
            rows += ray.get(ready)
        except Exception as error:
            mendable = user_error_in(error)
            if mendable is not None:
                raise UserError(f"{pending[ready[0]]}: {mendable}") from error
            raise
        context.report.progress(len(rows), total, **{metric: rows[-1]["test"][metric]})
    order = list(config.variants)
    return sorted(rows, key=lambda row: (order.index(row["variant"]), row["seed"]))


def _score(
    config: FinetuneConfig,
    inputs: dict[str, Artifact],
    variant: str,
    seed: int,
    scratch: Folder,
    done: str,
    report: Reporter,
) -> dict[str, Any]:
    """Fine-tune with one seed in a Ray task; the row, and beside it predictions and weights."""
    name = f"{variant}-seed-{seed}"
    report.nested(name, {"variant": variant, "seed": seed, **config.model_dump(mode="json")})
    began = time.monotonic()
    data = load_data(inputs["task"], inputs["tokenizer"], inputs["pretrain"], config)
    curve: list[float] = []

    def on_epoch(epoch: int, scores: dict[str, float], state: object = None) -> None:
        curve.append(scores[data.info.metric])
        shown = {f"validation/{k}": v for k, v in scores.items() if "/" not in k}
        report.metrics(shown, epoch, run=name)

    model = finetune(config, data, seed, on_epoch)
    scores = {split: evaluate(model, data, split) for split in ("validation", "test")}
    report.metrics(
        {f"test/{k}": v for k, v in scores["test"].metrics.items()}, config.epochs, run=name
    )
    save_tensors(scratch, f"{done}.safetensors", model.state_dict())
    scratch.write_bytes(f"{done}.predictions", _json_lines(scores["test"].predictions))
    row = {
        "variant": variant,
        "seed": seed,
        "curve": curve,
        **{split: {**found.metrics, "loss": found.loss} for split, found in scores.items()},
        "mix": None if model.mix is None else list(model.mix.read().shares),
        "model": describe(model),
        "files": done,
        "seconds": round(time.monotonic() - began, 1),
    }
    scratch.write_bytes(f"{done}.json", json.dumps(row).encode("utf-8"))
    report.nested(name, {}, "FINISHED")
    report.flush()
    return row


def _sums(
    rows: list[dict[str, Any]], info: TaskInfo, task: Artifact, scratch: Folder
) -> dict[tuple[str, int], NDArray[np.float64]]:
    """Of every row, what each test example adds to the metric: (N, k)."""
    examples = read(task, "test")
    return {
        (row["variant"], row["seed"]): metrics.sums(
            _predictions(scratch, row["files"]), examples, info
        )
        for row in rows
    }


def _differences(
    rows: list[dict[str, Any]],
    sums: dict[tuple[str, int], NDArray[np.float64]],
    info: TaskInfo,
    settings: EvaluateConfig,
) -> list[dict[str, Any]]:
    """Every pair of variants, first minus second: over seeds, and over test examples as well.

    The interval over seeds is Student's t and covers the luck of fine-tuning. The bootstrap draws
    test examples too, so that it covers which examples happen to be in the test split.
    """
    names = list(dict.fromkeys(row["variant"] for row in rows))
    found = []
    for first, second in itertools.combinations(names, 2):
        scores = [[row["test"][info.metric] for row in _of(rows, name)] for name in (first, second)]
        stacked = [
            np.stack([sums[name, row["seed"]] for row in _of(rows, name)])
            for name in (first, second)
        ]
        drawn = paired_bootstrap(
            *stacked,
            value=lambda totals: metrics.value(totals.astype(np.float64, copy=False), info),
            seed=settings.first_seed,
            resamples=settings.bootstrap_resamples,
        )
        old, new = float(np.mean(scores[1])), float(np.mean(scores[0]))
        found.append(
            {
                "first": first,
                "second": second,
                "seeds": _plain(paired_difference(*scores)),
                "bootstrap": {"low": drawn.low, "high": drawn.high, "p": drawn.p},
                "error_reduction": error_reduction(old, new) if old < 1 else None,
            }
        )
    return found


def _keep(
    rows: list[dict[str, Any]], best: dict[str, Any], inputs: dict[str, Artifact], output: Folder
) -> None:
    """The chosen model with all that prediction needs, and every prediction; scratch goes.

    Rows lose what only this step needs.
    """
    scratch = output / _SCRATCH
    where = [{"where": example.where} for example in read(inputs["task"], "test")]
    for row in rows:
        predictions = _predictions(scratch, row["files"])
        lines = [{**a, **b} for a, b in zip(where, predictions, strict=True)]
        name = f"predictions/{row['variant']}-seed-{row['seed']}.jsonl"
        output.write_bytes(name, _json_lines(lines))
    save_tensors(output, MODEL, load_tensors(scratch, f"{best['files']}.safetensors"))
    output.write_bytes(DESCRIPTION, json.dumps(best["model"], indent=1).encode("utf-8"))
    tokenizer = source_of(inputs, "tokenizer", best["variant"])
    output.write_bytes(TOKENIZER_FILE, tokenizer.folder.read_bytes(TOKENIZER_FILE))
    for row in rows:
        del row["files"], row["model"]
    scratch.remove()


def _selection(inputs: dict[str, Artifact], name: str) -> dict[str, Any] | None:
    """The score that selected the settings, which is not the one to report."""
    sweep = inputs.get(f"sweep/{name}")
    if sweep is None:
        return None
    best = sweep.summary["best"]
    seed = sweep.record["config"]["sweep"]["seed"]
    return {"score": best["score"], "trial": best["name"], "seed": seed}


def _pretraining(pretrain: Artifact, settings: FinetuneConfig) -> dict[str, Any] | None:
    """What the weights cost that the variant began with; None from random weights."""
    if settings.initialisation == "random":
        return None
    summary = pretrain.summary
    return {
        "objective": config_of(pretrain).objective.name,
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "flops": summary["flops_per_token"] * summary["tokens"],
        "parameters": summary["parameters"],
        "fingerprint": pretrain.fingerprint,
    }


def _headline(variants: dict[str, Any], metric: str, num_seeds: int) -> str:
    scores = ", ".join(
        f"{name} {found['estimates'][metric]['mean']:.1%}" for name, found in variants.items()
    )
    return f"test {metric.replace('_', ' ')}: {scores} ({num_seeds} seeds)"


def _of(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["variant"] == name]


def _predictions(scratch: Folder, done: str) -> list[dict[str, Any]]:
    lines = scratch.read_bytes(f"{done}.predictions").decode("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8")


def _plain(value: Estimate) -> dict[str, float]:
    return {"mean": value.mean, "low": value.low, "high": value.high, "count": value.count}
