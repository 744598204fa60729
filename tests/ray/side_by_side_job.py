"""A workflow of toy stages, as a command that tests start twice and kill.

    first ──> left  ──> last        alone (needs nothing)
       └────> right ──┘

    side_by_side_job.py FOLDER LABEL CONCURRENT SECONDS NUMBER

The first NUMBER of its five stages are built. Artifacts go to FOLDER/root; FOLDER/log gets a line
for each start and end of a stage.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from rungwise.cluster.environment import set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.config import Config
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.stage import Context, Stage, StageType, Title
from rungwise.core.storage.folder import Folder
from rungwise.pipeline import runner

STEPS = 10


class Toy(Config):
    """What a toy stage does; only its title is identity."""

    title: str
    log: str
    seconds: float = 0.0
    error: str = ""
    meets: str = ""  # it does not end before this stage has started, or a minute is over


class Calls:
    """A tracker that keeps what it is told."""

    uri = shown_uri = fault = ""
    waiting = 0

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: dict[str, str] = {}

    def open(self, key: str, name: str, *_: Any, **__: Any) -> None:
        self.opened.append(key)

    def close(self, key: str, status: str) -> None:
        assert key not in self.closed
        self.closed[key] = status

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None  # whatever else it is told is forgotten


def build(config: Toy, inputs: dict[str, Artifact], output: Folder, context: Context) -> Summary:
    """Take STEPS steps in a task that needs a whole CPU, and go on after those that are done."""
    if config.error:
        raise ValueError(config.error)
    done = ray.get(ray.remote(num_cpus=1)(_steps).remote(config, output, context))
    return Summary(headline=f"{len(done)} steps")


TOY = StageType(
    "toy", 1, build, Summary, identity=lambda config: {"title": config.title}, resumes=True
)


def _steps(config: Toy, output: Folder, context: Context) -> list[str]:
    done = set(output.names())
    write(config, "start", len(done))
    for step in range(STEPS):
        if f"step-{step}" not in done:
            context.report.metrics({"step": step}, step)
            time.sleep(config.seconds / STEPS)
            output.write_bytes(f"step-{step}", b"")
    deadline = time.monotonic() + 60
    while config.meets and time.monotonic() < deadline:
        if config.meets in {row["stage"] for row in rows(Path(config.log), "start")}:
            break
        time.sleep(0.1)
    write(config, "end", STEPS)
    return output.names()


def write(config: Toy, event: str, steps: int) -> None:
    row = {"stage": config.title, "event": event, "steps": steps, "time": time.time()}
    row["node"] = ray.get_runtime_context().get_node_id()
    with open(config.log, "a") as log:
        log.write(json.dumps(row) + "\n")


def rows(log: Path, event: str) -> list[dict[str, Any]]:
    """The lines of the log that say `event`, oldest first."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == event]


def stages(folder: Path, seconds: float, **more: dict[str, str]) -> list[Stage]:
    """All five; `more` has keys of a stage's config by its title."""

    def toy(title: str, *inputs: Stage) -> Stage:
        keys = more.get(title, {})
        config = Toy.model_validate(
            {"title": title, "log": str(folder / "log"), "seconds": seconds, **keys}
        )
        sources = {source.display_name: source for source in inputs}
        return TOY.stage(config, sources, Title(title))

    first = toy("first")
    left, right = toy("left", first), toy("right", first)
    return [first, left, right, toy("last", left, right), toy("alone")]


def run(
    folder: Path, made: list[Stage], label: str, concurrent: int, tracker: Any, console: Console
) -> runner.Outcome:
    compute = ComputeConfig(max_concurrent_stages=concurrent, object_store_megabytes=100)
    root = Folder.at(folder / "root")
    return runner.run(made, root, label, compute, lambda _: tracker, console)


if __name__ == "__main__":
    set_environment()
    place = Path(sys.argv[1])
    made = stages(place, float(sys.argv[4]))[: int(sys.argv[5])]
    with session(ComputeConfig()):
        print("joined", flush=True)
        outcome = run(place, made, sys.argv[2], int(sys.argv[3]), Calls(), Console(width=200))
    print(f"{os.getpid()} built {' '.join(outcome.built) or 'nothing'}")
