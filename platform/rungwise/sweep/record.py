"""What is kept of a trial: one small JSON file, `trials/trial-003.json`, from its start on.

The trial writes it after every epoch and before it tells Ray Tune of that epoch; what only the
driver knows (stopped early, failed) the driver adds when the trial has ended. Each write is whole.
So a sweep whose driver was killed finds here which trials have ended, and no other state is needed:
Tune's own snapshot is written once in a while and lags behind the trials.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rungwise.core.config import flatten
from rungwise.core.storage import Folder

FOLDER = "trials"
State = Literal["running", "finished", "stopped_early", "failed"]


@dataclass
class Saved:
    """A state of training that a trial can go on from: whose, after which epoch, in which file.

    `rows` are the rows of the trial's own history that belong before it.
    """

    trial: str
    epoch: int
    file: str
    rows: int


@dataclass
class TrialRecord:
    """One trial. `history` has a row an epoch: epoch, score, loss, seconds since its start, metrics
    and, where settings change on the way, those of that epoch.

    `drawn` are the values it began with and `values` those in force, by dotted key of the recipe;
    `settings` is the resolved `finetune` block, `effective` what the training measured of it.
    """

    name: str
    number: int
    drawn: dict[str, Any]
    values: dict[str, Any]
    upstream: int | None
    settings: dict[str, Any]
    seed: int
    state: State = "running"
    history: list[dict[str, Any]] = field(default_factory=list)
    effective: dict[str, float] = field(default_factory=dict)
    taken_over: list[dict[str, Any]] = field(default_factory=list)
    saved: Saved | None = None
    seconds: float = 0.0
    error: str | None = None

    @property
    def ended(self) -> bool:
        """True if it need not run again; a failed trial may go well the next time."""
        return self.state in ("finished", "stopped_early")

    def parameters(self) -> dict[str, Any]:
        """What tracking keeps as the parameters of its run: the whole block, and other keys."""
        others = {k: v for k, v in self.drawn.items() if not k.startswith("finetune.")}
        return flatten(self.settings, "finetune") | flatten(others)

    def points(self, row: dict[str, Any]) -> dict[str, float]:
        """What tracking keeps of an epoch."""
        shown = {f"validation/{key}": value for key, value in row["metrics"].items()}
        return shown | {f"setting/{key}": value for key, value in row.get("values", {}).items()}

    def row(self) -> dict[str, Any]:
        """As it stands in the summary of the stage."""
        row = asdict(self)
        del row["saved"], row["number"]
        row["finetune"] = row.pop("settings")
        row |= {
            "epochs_run": len(self.history),
            "epochs_asked": self.settings["epochs"],
            "stopped_early": self.state == "stopped_early",
        }
        if self.history and self.state != "failed":
            row |= {name: self.history[-1][name] for name in ("score", "loss")}
        return row


def name_of(number: int) -> str:
    return f"trial-{number:03d}"


def write(record: TrialRecord, output: Folder) -> None:
    """Keep `record` below the artifact `output`, in place of an earlier one."""
    text = json.dumps(asdict(record), indent=1, ensure_ascii=False, allow_nan=False)
    output.write_bytes(_file(record.name), text.encode("utf-8"))


def read(name: str, output: Folder) -> TrialRecord | None:
    """The record of one trial, None if it has not begun."""
    if not output.exists(_file(name)):
        return None
    data = json.loads(output.read_bytes(_file(name)))
    data["saved"] = Saved(**data["saved"]) if data["saved"] else None
    return TrialRecord(**data)


def read_all(output: Folder) -> list[TrialRecord]:
    """The records of all trials that have begun, by their number."""
    names = [name.removesuffix(".json") for name in (output / FOLDER).names()]
    found = [read(name, output) for name in names if not name.rpartition("/")[2].startswith(".")]
    return sorted((one for one in found if one), key=lambda record: record.number)


def table(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials as flat rows: a column for each swept key, measured values as `effective/<key>`."""
    return [
        {
            "trial": row["name"],
            "state": row["state"],
            **{key: _cell(value) for key, value in row["values"].items()},
            "epochs_run": row["epochs_run"],
            "epochs_asked": row["epochs_asked"],
            "score": row.get("score", ""),
            "loss": "" if row.get("loss") is None else row["loss"],
            "seconds": row["seconds"],
            **{f"effective/{key}": value for key, value in row["effective"].items()},
            "error": row["error"] or "",
        }
        for row in rows
    ]


def csv_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """A CSV file; its columns are all keys, in the order in which they first appear."""
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | bool | None) else value


def _file(name: str) -> str:
    return f"{FOLDER}/{name}.json"
