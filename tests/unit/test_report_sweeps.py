"""The sweep's part of the report: its pictures, where trials are compared, what the table holds."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rungwise.core.stages.artifact import Artifact
from rungwise.core.tables import csv_bytes
from rungwise.finetune import FinetuneConfig
from rungwise.report.palette import series
from rungwise.report.plots import sweeps as sweep_plots
from rungwise.report.sections import tables
from rungwise.report.sections.variants import VariantSweep
from rungwise.sweep.record import ScoredTrial, SweepSummary
from tests.toy_sweeps import swept

RATES = {"kind": "loguniform", "low": 1e-5, "high": 1e-1}
USES = [{"kind": "full"}, {"kind": "discriminative", "decay": 0.9}]
HALVING = {"kind": "halving", "grace_epochs": 1, "reduction_factor": 2}
SPACE = {
    "finetune.learning_rate": RATES,
    "finetune.batch_size": {"kind": "choice", "values": [16, 32]},
    "finetune.adaptation": {"kind": "choice", "values": USES},
}
LISTS: dict[str, Any] = {
    "search": {"kind": "grid"},
    "space": {
        "finetune.pooling": {"kind": "choice", "values": ["cls", "mean"]},
        "finetune.loaded_layers": {"kind": "choice", "values": [None, 1]},
    },
}


def of(task: str, variant: str, sweep: Artifact) -> VariantSweep:
    look = series(("first", "second", "third").index(variant))
    settings = sweep.record["config"]["sweep"]
    return VariantSweep(task, variant, look, SweepSummary.of(sweep), settings)


def several(folder: Path) -> list[VariantSweep]:
    """Two variants on one task, which share a key, and one of them on another."""
    block: dict[str, Any] = {"space": SPACE, "trials": 9, "scheduler": HALVING}
    rates = {"finetune.learning_rate": RATES, "finetune.dropout": {"kind": "uniform"}}
    rates["finetune.dropout"] |= {"low": 0.0, "high": 0.5}
    other: dict[str, Any] = block | {"space": rates}
    return [
        of("pairs", "first", swept(folder, {"epochs": 5}, failed=1, **block)),
        of("pairs", "second", swept(folder, {"epochs": 5}, 0.1, seed=1, **other)),
        of("tags", "first", swept(folder, {"epochs": 2}, **LISTS)),
    ]


def trial(score: float = 0.5, values: dict[str, Any] | None = None, epochs: int = 1) -> ScoredTrial:
    finetune = FinetuneConfig(epochs=epochs)
    return ScoredTrial.model_construct(
        values=values or {}, finetune=finetune, score=score, state="finished"
    )


def picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_the_plot_of_sweeps_has_a_panel_for_each_task(tmp_path: Path) -> None:
    sweeps, draw = several(tmp_path), sweep_plots.draw_curves
    data = draw(sweeps)
    assert data == draw(sweeps)
    one = draw([sweep for sweep in sweeps if sweep.task == "pairs"])
    larger, smaller = picture(data).size, picture(one).size
    assert larger[0] * larger[1] > 1.3 * smaller[0] * smaller[1]
    # More than a frame: curves, points or lines in the colours of two variants.
    assert len(np.unique(np.asarray(picture(data).convert("P")))) > 20
    block = {"space": {"finetune.learning_rate": RATES}, "trials": 1}
    single = [of("pairs", "first", swept(tmp_path, {"epochs": 1}, **block))]
    assert picture(draw(single)).width > 500


def test_trials_are_compared_at_milestones_below_their_last_epoch() -> None:
    trials = [trial(epochs=9), trial(epochs=4)]
    settings = {"scheduler": {"kind": "halving", "grace_epochs": 1, "reduction_factor": 3}}
    assert sweep_plots.halving_epochs(settings, trials) == [1, 3]
    assert sweep_plots.halving_epochs(settings, [trial(epochs=10)]) == [1, 3, 9]
    assert sweep_plots.halving_epochs({"scheduler": {"kind": "none"}}, trials) == []


def test_the_table_has_every_trial_of_every_sweep_and_its_winners(tmp_path: Path) -> None:
    sweeps = several(tmp_path)
    rows = tables.trials(sweeps)
    assert len(rows) == 9 + 9 + 4
    winners = [(row["task"], row["variant"], row["trial"]) for row in rows if row["winner"]]
    assert winners == [(each.task, each.variant, each.summary.best.name) for each in sweeps]
    failed = [row for row in rows if row["state"] == "failed"]
    assert [(row["trial"], row["score"], row["error"]) for row in failed] == [
        ("trial-008", "", "it broke")
    ]
    assert rows[0]["finetune.learning_rate"] > 0
    assert csv_bytes(rows).startswith(b"task,variant,trial,state,finetune.adaptation,")
