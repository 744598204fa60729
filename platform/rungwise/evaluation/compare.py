"""Evaluate stage: the winners of the sweep on new seeds and on the test split that no trial saw.

Each seed fine-tunes both initialisations, so the difference is taken pair by pair. The seeds are
not the sweep's and the split is not the one that selected, so the winner's luck does not enter.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.context import Context, Reporter
from rungwise.errors import UserError
from rungwise.evaluation.statistics import Estimate, estimate, paired_difference
from rungwise.finetune import (
    FinetuneConfig,
    Initialisation,
    evaluate,
    finetune,
    load_data,
)
from rungwise.storage import Folder
from rungwise.training.checkpoint import MODEL, load_tensors, save_tensors

_SCRATCH = "seeds"


class EvaluateConfig(Config):
    """How many seeds. Five is the number of restarts behind the paper's CoNLL-2003 figures."""

    num_seeds: int = Field(default=5, ge=2)
    first_seed: int = Field(default=1000, ge=0)


def run(
    config: EvaluateConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Scores of every seed, means with intervals, and the pretrained model best on validation.

    Raises UserError if a seed is the sweep's own.
    """
    import ray

    sweep = inputs["sweep"]
    selection_seed = sweep.record["config"]["sweep"]["seed"]
    seeds = list(range(config.first_seed, config.first_seed + config.num_seeds))
    if selection_seed in seeds:
        raise UserError(
            f"evaluate.first_seed {config.first_seed} makes the seeds {seeds[0]} to {seeds[-1]}, "
            f"which hold the sweep's own ({selection_seed}); choose another first_seed"
        )
    best: dict[Initialisation, Any] = sweep.summary["best"]
    score = ray.remote(num_cpus=1)(_score)
    pending = {
        score.remote(
            FinetuneConfig.model_validate(winner["finetune"]),
            inputs,
            initialisation,
            seed,
            output / _SCRATCH,
            context.report,
        ): (initialisation, seed)
        for seed in seeds
        for initialisation, winner in best.items()
    }
    rows: list[dict[str, Any]] = []
    waiting = list(pending)
    while waiting:
        ready, waiting = ray.wait(waiting)
        rows += ray.get(ready)
        context.report.progress(len(rows), len(pending), accuracy=rows[-1]["test"]["accuracy"])
    rows.sort(key=lambda row: (row["initialisation"], row["seed"]))
    systems = {
        name: {
            metric: _plain(
                estimate([row["test"][metric] for row in rows if row["initialisation"] == name])
            )
            for metric in ("accuracy", "macro_f1")
        }
        for name in best
    }
    chosen = min(
        (row for row in rows if row["initialisation"] == next(iter(best))),
        key=lambda row: (-row["validation"]["accuracy"], row["validation"]["loss"], row["seed"]),
    )
    # Scores decided; now the weights of the one that is kept.
    weights = load_tensors(output / _SCRATCH, _weights(chosen["initialisation"], chosen["seed"]))
    save_tensors(output, MODEL, weights)
    (output / _SCRATCH).remove()
    first = systems[next(iter(best))]["accuracy"]
    summary: dict[str, Any] = {
        "rows": rows,
        "seeds": seeds,
        "selection_seed": selection_seed,
        "systems": systems,
        "chosen": chosen,
        "majority_accuracy": inputs["task"].summary["majority_accuracy"],
        "headline": f"test accuracy {first['mean']:.1%} [{first['low']:.1%}, {first['high']:.1%}]",
    }
    if {"pretrained", "random"} <= best.keys():
        pairs = [
            [row["test"]["accuracy"] for row in rows if row["initialisation"] == name]
            for name in ("pretrained", "random")
        ]
        difference = paired_difference(*pairs)
        summary["difference"] = _plain(difference)
        summary["headline"] = (
            f"test accuracy {systems['pretrained']['accuracy']['mean']:.1%} with pretraining, "
            f"{systems['random']['accuracy']['mean']:.1%} without: "
            f"{100 * difference.mean:+.1f} points "
            f"[{100 * difference.low:+.1f}, {100 * difference.high:+.1f}], {len(seeds)} seeds"
        )
    return summary


def _score(
    config: FinetuneConfig,
    inputs: dict[str, Artifact],
    initialisation: Initialisation,
    seed: int,
    weights: Folder,
    report: Reporter,
) -> dict[str, Any]:
    """Fine-tune with one seed in a Ray task; validation and test scores, weights on the side."""
    name = f"{initialisation}-seed-{seed}"
    report.nested(name, {"initialisation": initialisation, "seed": seed, **config.model_dump()})
    data = load_data(
        inputs["task"], inputs["tokenizer"], inputs["pretrain"], config.sequence_length
    )
    curve: list[float] = []

    def on_epoch(epoch: int, metrics: dict[str, float]) -> None:
        curve.append(metrics["accuracy"])
        report.metrics({f"validation/{k}": v for k, v in metrics.items()}, epoch, run=name)

    model = finetune(config, data, initialisation, seed, on_epoch)
    scores = {
        split: evaluate(model, data.splits[split]).metrics() for split in ("validation", "test")
    }
    report.metrics({f"test/{k}": v for k, v in scores["test"].items()}, config.epochs, run=name)
    save_tensors(weights, _weights(initialisation, seed), model.state_dict())
    report.nested(name, {}, "FINISHED")
    report.flush()
    return {"initialisation": initialisation, "seed": seed, "curve": curve, **scores}


def _weights(initialisation: str, seed: int) -> str:
    return f"{initialisation}-{seed}.safetensors"


def _plain(value: Estimate) -> dict[str, float]:
    return {"mean": value.mean, "low": value.low, "high": value.high, "count": value.count}
