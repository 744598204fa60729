"""A stage is a plain function and what makes its output what it is; `plan` says what must be built.

    run(config, inputs, output, context) -> summary

The fingerprint hashes the stage's name and version, the identity part of its config, the digests
of what it reads from outside, and its inputs' fingerprints. Where it runs, paths, the label and job
ids are not among them, by construction. A change of code is declared by raising `version`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from rungwise.core import artifact as artifacts
from rungwise.core.artifact import Artifact
from rungwise.core.config import Config, fingerprint, flatten
from rungwise.core.context import Context
from rungwise.core.storage import Folder

# The reason to build that a stage has which resumes a stopped attempt.
GOES_ON = "goes on where it was stopped"

Run = Callable[[Any, dict[str, Artifact], Folder, Context], dict[str, Any]]


@dataclass(frozen=True)
class Stage:
    """One box of a workflow.

    `identity` is the config as far as it decides what comes out (the whole of it by default);
    `outside` holds digests of what is read from elsewhere. `resumes` keeps the files of a killed
    attempt for the next one. `place` is "task" for a Ray task anywhere on the cluster, "driver" for
    the few stages that must speak to the tracking server themselves. `title` sets apart stages of
    one name in a run, such as `pretrain/no_nsp`; like the label it is for people only.
    """

    name: str
    version: int
    run: Run
    config: Config
    inputs: Mapping[str, Stage] = field(default_factory=dict)
    identity: Mapping[str, Any] | None = None
    outside: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False
    place: Literal["task", "driver"] = "task"
    title: str = ""

    @property
    def shown(self) -> str:
        """What this stage is called in a run where several have its name."""
        return self.title or self.name

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Everything the fingerprint rests on, as plain data."""
        identity = self.config if self.identity is None else dict(self.identity)
        return {
            "stage": self.name,
            "version": self.version,
            "config": identity.model_dump(mode="json")
            if isinstance(identity, Config)
            else identity,
            "outside": dict(self.outside),
            "inputs": {name: stage.fingerprint for name, stage in self.inputs.items()},
        }

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.facts)


@dataclass(frozen=True)
class Planned:
    """One row of a plan. `artifact` is there exactly if the stage is done."""

    stage: Stage
    folder: Folder
    artifact: Artifact | None
    reason: str


def plan(stages: Sequence[Stage], root: Folder, label: str) -> list[Planned]:
    """What of `stages` is done under `root` and what must be built, each with the reason."""
    rows: list[Planned] = []
    for stage in stages:
        folder = artifacts.folder_of(root, stage.name, label, stage.fingerprint)
        done = artifacts.load(folder)
        reason = "done" if done else _reason(stage, root, folder, rows)
        rows.append(Planned(stage, folder, done, reason))
    return rows


def _reason(stage: Stage, root: Folder, folder: Folder, earlier: Sequence[Planned]) -> str:
    if stage.resumes and folder.names():
        return GOES_ON
    previous = artifacts.all_of(root, stage.name)
    if not previous:
        return "never built"
    closest = min(previous, key=lambda found: len(_changes(found.record["facts"], stage.facts)))
    changes = _changes(closest.record["facts"], stage.facts)
    rebuilt = [row.stage.shown for row in earlier if row.artifact is None]
    own = [change for change in changes if not change.startswith("inputs.")]
    if own:
        return "; ".join(own)
    inputs = [name for name, source in stage.inputs.items() if source.shown in rebuilt]
    if inputs:
        return f"its input {', '.join(inputs)} is rebuilt"
    return f"its inputs differ: {', '.join(stage.inputs)}"


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = flatten(dict(old)), flatten(dict(new))
    return [
        f"{key.removeprefix('config.')} {_show(before.get(key))} -> {_show(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _show(value: Any) -> str:
    if value is None:
        return "unset"
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
