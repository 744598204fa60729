"""Sweep stage: settings are tried on one variant and scored on the validation split only.

The score of a sweep's winner is a maximum over trials and so too good; the honest score comes from
new seeds on the test split (evaluation/compare.py).
"""

from __future__ import annotations

import json
from typing import Any

from rungwise.cluster import expected_nodes
from rungwise.cluster.session import shared_scratch
from rungwise.core.artifact import Artifact
from rungwise.core.context import Context
from rungwise.core.errors import UserError
from rungwise.core.storage import Folder
from rungwise.sweep import record as records
from rungwise.sweep.config import SweepStageConfig
from rungwise.sweep.draws import grid_epochs, upstream_values
from rungwise.sweep.effective import check_inputs
from rungwise.sweep.trial import STATES, Job, Train, train
from rungwise.tasks.examples import TaskInfo

TABLE, RECORD = "trials.csv", "sweep.json"


def run(
    config: SweepStageConfig,
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
    train: Train = train,
) -> dict[str, Any]:
    """Run the trials; the winner has the highest validation score of those that ran to their end.

    `inputs` are task, tokenizer and pretrain, or `pretrain@0` and so on where the sweep has
    upstream. Started again in the same `output` after a kill, it runs what has not ended.
    Raises UserError if every trial failed, if a trial asks for more than a node has, or if a value
    was not in force.
    """
    from rungwise.sweep import tune

    tried = upstream_values(config.sweep)
    check_inputs(inputs, tried)
    metrics = {TaskInfo.of(one).metric for name, one in inputs.items() if _is_task(name)}
    assert len(metrics) == 1, f"expected one metric, found {sorted(metrics)}"
    job = Job(config, inputs, output, metrics.pop(), context.report, train)
    # What a killed attempt left of Tune's own is of no use.
    (output / ".ray-tune").remove()
    with shared_scratch(output, "ray-tune") as scratch:
        tune.run(job, context.compute, expected_nodes.nodes(), scratch)
    (output / STATES).remove()
    return _summary(job, tried)


def _summary(job: Job, tried: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [trial.row() for trial in records.read_all(job.output)]
    scored = [row for row in rows if row["state"] in ("finished", "stopped_early")]
    if not scored:
        raise UserError(
            f"all {len(rows)} trials of the sweep failed, the first with: {rows[0]['error']}"
        )
    # A trial that was stopped was not trained as its settings say. Of equal scores the smaller
    # loss, then the earlier trial, so that a tie is no coin toss.
    whole = [row for row in scored if not row["stopped_early"]] or scored
    best = min(whole, key=lambda row: (-row["score"], _or_infinite(row["loss"]), row["name"]))
    asked = sum(row["epochs_asked"] for row in rows)
    stopped = sum(row["stopped_early"] for row in rows)
    failed = sum(row["state"] == "failed" for row in rows)
    ran = sum(row["epochs_run"] for row in rows)
    grid = grid_epochs(job.config, asked)
    best_values = ", ".join(
        f"{key.rpartition('.')[2]} {_short(value)}" for key, value in best["values"].items()
    )
    summary = {
        "trials": rows,
        "best": best,
        "metric": job.metric,
        "upstream": tried,
        "stopped_early": stopped,
        "failed": failed,
        "epochs_run": ran,
        "epochs_asked": asked,
        "grid_epochs": grid,
        "epochs_saved": grid - ran,
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "headline": f"{len(rows)} trials, {stopped} stopped early, {failed} failed  "
        f"best validation {job.metric} {best['score']:.3f} ({best_values})",
    }
    job.output.write_bytes(TABLE, records.csv_bytes(records.table(rows)))
    whole_record = {"sweep": job.config.sweep.model_dump(mode="json"), **summary}
    text = json.dumps(whole_record, indent=1, ensure_ascii=False, allow_nan=False)
    job.output.write_bytes(RECORD, text.encode("utf-8"))
    return summary


def _is_task(name: str) -> bool:
    return name.partition("@")[0] == "task"


def _or_infinite(loss: float | None) -> float:
    return float("inf") if loss is None else loss


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
