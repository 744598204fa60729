"""One stage being built: its Ray task, display line, MLflow run and record.

The overview on a run's MLflow page: headline metrics and a description in Markdown.
"""

import datetime
import json
import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.configuration.canonical import fingerprint, flatten
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, TrackingRun, run_stage
from rungwise.core.stages.stage import GOES_ON, Planned
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.store_errors import explain_store_errors
from rungwise.core.tracking.sender import EXPERIMENT_ID, NOTE_TAG, RUN_ID
from rungwise.core.tracking.tracker import Tracker
from rungwise.corpus.summary import CORPUS
from rungwise.evaluation.comparison.summary import EVALUATE, EvaluateSummary
from rungwise.monitoring import Monitor
from rungwise.pipeline.display import Display
from rungwise.pipeline.estimate import RunForecast
from rungwise.report import findings
from rungwise.report.stage import LADDER, REPORT, REPORT_PAGE
from rungwise.serving.card import link_page
from rungwise.tasks.config import TASK
from rungwise.training.fit_config import PRETRAIN, PretrainStageConfig
from rungwise.training.save_request import SCRATCH
from rungwise.training.summary import PretrainSummary

PAGE_FILES = "report_files"  # sorts after report.html
_PAGES = (REPORT.name, LADDER.name)
_PICTURES = ("scores-", "ladder.", "loss")  # the first one found is shown
_MOST_ROWS = 24
_WHERE = ("step", "tokens", "sequence_length")  # keys of a curve's row that are not results


def page_name(artifact: Artifact) -> str | None:
    """The name of the HTML page in a report or ladder artifact, None for other artifacts."""
    return artifact.record["summary"]["page"] if artifact.stage in _PAGES else None


def headline_metrics(finished: Mapping[str, Artifact]) -> dict[str, float]:
    """The last validation of every pretraining, and the test score of every variant and rival."""
    results: dict[str, float] = {}
    for title, artifact in finished.items():
        if artifact.stage == PRETRAIN.name:
            final = PretrainSummary.of(artifact).final
            results |= {f"{title}/{key}": float(final[key]) for key in final if key not in _WHERE}
        elif artifact.stage == EVALUATE.name:
            evaluated = EvaluateSummary.of(artifact)
            for name, estimate in evaluated.estimates().items():
                # The UI groups charts into rows by what precedes the last slash.
                results[f"{title}/{evaluated.metric}/{name}"] = estimate.mean
    return results


def list_data(finished: Mapping[str, Artifact]) -> dict[str, tuple[str, str]]:
    """The digest and the place of each corpus and task, by title."""
    return {
        title: (each.digest, each.folder.uri)
        for title, each in finished.items()
        if each.stage in (CORPUS.name, TASK.name)
    }


def description(finished: Mapping[str, Artifact], root: str) -> str:
    """Markdown with the verdict, the picture of the page and a line for each result."""
    pages = [artifact for artifact in finished.values() if artifact.stage in _PAGES]
    results = {
        title: artifact for title, artifact in finished.items() if artifact.stage not in _PAGES
    }
    last = pages[-1] if pages else list(results.values())[-1]
    lines = [last.headline, ""]  # plain, since a list of runs shows it as it is
    if page := page_name(last):  # in the first line, which the UI does not fold away
        lines[0] += f" The whole page: {link_page(EXPERIMENT_ID, RUN_ID, page)}"
    if {"pretrain", "corpus"} <= finished.keys() and pages:
        lines += [findings.describe_training(finished), ""]
    names = [name for page in pages[-1:] for name in page.record["files"] if name.endswith(".png")]
    pictures = [name for start in _PICTURES for name in names if name.startswith(start)]
    if pictures:
        picture = pictures[0]
        where = f"get-artifact?path={PAGE_FILES}/{picture}&run_uuid={RUN_ID}"
        lines += [f"![{picture.removesuffix('.png')}]({where})", ""]
    lines += ["| stage | result |", "|---|---|"]
    cells = str.maketrans({"|": "\\|", "\n": " "})
    rows = [f"| {title} | {each.headline.translate(cells)} |" for title, each in results.items()]
    lines += rows[-_MOST_ROWS:]
    if len(rows) > _MOST_ROWS:
        lines.append(f"| | and {len(rows) - _MOST_ROWS} stages before these |")
    return "\n".join([*lines, "", f"Files: `{root}`"])


# So little that a task waiting for its own workers cannot starve them. Zero would allow stages on
# the head node of a cluster, which declares no CPUs to keep all work away.
_STAGE_CPUS = 0.1
_ROOM_BYTES = 256 << 20  # no stage starts with less free disk space


@dataclass(frozen=True)
class Build:
    """The values that all stages of a run share; `driver` is the id of this driver, `parent` the
    key of the run's MLflow run."""

    label: str
    compute: ComputeConfig
    tracker: Tracker
    driver: str
    parent: str
    made_by: dict[str, Any]
    display: Display
    monitor: Monitor
    recipe: Mapping[str, Any]
    estimate: RunForecast


# An override that may tell runs of a recipe apart.
_CHANGE = re.compile(r"(?!(?:root|name)=|compute\.|tracking\.)[a-z_][\w.]*=")
# Blocks of a summary that repeat the training settings.
_SETTINGS = {"model", "finetune", "values"}


class StageJob:
    def __init__(
        self, row: Planned, folder: Folder, inputs: dict[str, Artifact], build: Build
    ) -> None:
        self.row = row
        self.task: Any = None  # set by `submit`; None for a stage in the driver
        self._folder = folder
        self._inputs = inputs
        self._build = build
        self._key = f"{row.stage.name}-{row.stage.fingerprint}"
        self._started = _now()
        self._clock = time.monotonic()
        self._waits_since: float | None = self._clock  # for a process; None while it works
        self._waited = 0.0
        self._goes_on = row.earlier is not None
        self._steps = 0.0  # or other units of work, as last reported

    def open(self) -> None:
        """Start the stage's MLflow run and display line; empty its folder unless it resumes."""
        stage, build = self.row.stage, self._build
        free = self._folder.free_bytes()
        if free is not None and free < _ROOM_BYTES:
            raise UserError(
                f"no room left on the disk of {self._folder.uri}: {free >> 20} MB free, "
                f"at least {_ROOM_BYTES >> 20} MB needed; free some space, or choose another root"
            )
        reason = self.row.reason
        if not stage.type.resumes:
            self._folder.remove()
        elif self._folder.names():  # possibly from a driver that we waited for
            reason, self._goes_on = GOES_ON, True
            self._folder.remove_unfinished()
        build.tracker.open(
            self._key,
            f"{stage.display_name} of {build.label}",
            parent=build.parent,
            tags=source_tags(build.made_by)
            | {"rungwise.stage": stage.name, "rungwise.fingerprint": stage.fingerprint}
            | {f"rungwise.input.{name}": each.fingerprint for name, each in self._inputs.items()},
            params=flatten(stage.config),
        )
        inputs = {name: (each.digest, each.folder.uri) for name, each in self._inputs.items()}
        outside = {
            key: (fingerprint(value, length=36), json.dumps(value))
            for key, value in stage.facts["outside"].items()
        }
        if inputs | outside:
            build.tracker.datasets(self._key, inputs | outside)
        build.display.start(stage.display_name, reason)

    def submit(self, board: Any) -> None:
        """Start the stage as a Ray task that reports to `board`."""
        import ray

        from rungwise.core.stages.board import BoardReporter

        stage, compute = self.row.stage, self._build.compute
        alone, trains_alone = _is_alone(), stage.type.trains_alone(stage.config, compute)
        # Clusters have machines that come and go, which Ray Train watches for.
        trains_here = alone and trains_alone and "RAY_ADDRESS" not in os.environ
        if trains_here:
            cpus, retries = compute.cpus_per_worker, compute.max_failures
        else:
            # On two cores, two stages would leave 1.8 CPUs, room for only one of their workers,
            # which take a whole CPU each.
            cpus, retries = 0 if alone else _STAGE_CPUS, 2
        context = Context(
            compute,
            BoardReporter(board, stage.display_name),
            recipe=self._build.recipe,
            trains_here=trains_here,
        )
        # Ray retries a stage whose process or node died, but not one that raised an exception.
        task = ray.remote(num_cpus=cpus, max_retries=retries, retry_exceptions=False)(run_stage)
        self.task = task.options(name=stage.display_name).remote(
            stage.type.run, stage.config, self._inputs, self._folder, context
        )

    def run_here(self) -> Summary:
        """Run the stage in the driver. Raises UserError if the tracking server does not answer."""
        stage, build = self.row.stage, self._build
        run_id = build.tracker.run_id(self._key, timeout_seconds=60)
        if run_id is None:
            raise UserError(
                f"the stage {stage.display_name} needs the tracking server, which does not answer "
                f"at {build.tracker.public_uri}; all stages before it are done, run the same "
                "command when the server is back"
            )
        tracking = TrackingRun(build.tracker.uri, run_id, REPORT_PAGE)
        context = Context(build.compute, tracking=tracking, recipe=build.recipe)
        self._waits_since = None
        return stage.type.run(stage.config, self._inputs, self._folder, context)

    def handle(self, event: dict[str, Any]) -> None:
        name, build = self.row.stage.display_name, self._build
        build.monitor.handle(name, event)
        self._note_waiting(event)
        match event["kind"]:
            case "progress":
                self._steps = event["done"]
                build.display.progress(name, event["done"], event["total"], event["shown"])
            case "metrics":
                target = f"{self._key}/{event['run']}" if event["run"] else self._key
                build.tracker.metrics(target, event["values"], event["step"])
            case "nested":
                nested = f"{self._key}/{event['run']}"
                if event["status"] == "RUNNING":
                    params = flatten(event["params"])
                    # Otherwise `trial-000` of every sweep would look alike in a list of runs.
                    run_name = f"{name.partition('/')[2] or name}/{event['run']} of {build.label}"
                    build.tracker.open(nested, run_name, self._key, {}, params)
                else:
                    build.tracker.close(nested, event["status"])
            case "note":
                build.display.note(name, event["message"])
                build.tracker.tags(self._key, {"rungwise.note": event["message"]})

    @property
    def scratch(self) -> Folder | None:
        """Where a training by gradient is asked to save; None before its first step, and for other
        stages."""
        config = self.row.stage.config
        learns = isinstance(config, PretrainStageConfig) and config.pretrain.saves_on_request
        return self._folder / f".{SCRATCH}" if learns and self._steps else None

    @property
    def worked(self) -> tuple[float, float]:
        """From when to when the stage worked, by the monotonic clock, as if in one piece."""
        now = time.monotonic()
        return min(now, self._clock + self._waited), now

    def _note_waiting(self, event: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if event["kind"] == "progress" and event["shown"].get("workers") == "starting":
            self._waits_since = self._waits_since or now
        elif event["kind"] in ("began", "progress", "metrics") and self._waits_since is not None:
            # Reports come late; the clock of another machine may differ.
            late = time.time() - event["at"] if event["kind"] == "began" else 0.0
            self._waited += max(0.0, now - self._waits_since - max(0.0, late))
            self._waits_since = None

    def record(self, summary: Summary) -> Artifact:
        with explain_store_errors(self._folder.uri):
            artifact = self._record(summary, time.monotonic() - self._clock)
        self._build.tracker.close(self._key, "FINISHED")
        name = self.row.stage.display_name
        self._build.display.show(name, "done", summary.headline)
        if summary.caution:
            self._build.display.note(name, summary.caution)
        return artifact

    def end(self, status: str) -> None:
        """End the MLflow run of an unfinished stage with FAILED or KILLED."""
        self._build.tracker.close(self._key, status)

    def _record(self, summary: Summary, seconds: float) -> Artifact:
        stage, tracker = self.row.stage, self._build.tracker
        plain = summary.model_dump(mode="json")
        work = self._build.estimate.work[stage.display_name]
        run_id = tracker.run_id(self._key, timeout_seconds=0.1)
        record = {
            "stage": stage.name,
            "title": stage.display_name,
            "version": stage.type.version,
            "label": self._build.label,
            "fingerprint": stage.fingerprint,
            "facts": stage.facts,
            "config": stage.config.model_dump(mode="json"),
            "inputs": artifacts.describe_inputs(self._inputs),
            "summary": plain,
            "recipe": dict(self._build.recipe),
            "started": self._started,
            "finished": _now(),
            "seconds": round(seconds, 3),
            "starting_seconds": round(self._waited, 3),
            # None of a part, which would teach a wrong rate.
            "work": None if self._goes_on or work is None else list(work[:3]),
            "mlflow_run_id": run_id,
            "ray_job_id": os.environ.get("RAY_JOB_ID"),
            "made_by": self._build.made_by,
        }
        artifact = artifacts.finish(self._folder, record, summary.sha256)
        # Log measured numbers as metrics; settings, counts, sizes and names as parameters.
        flat = flatten(plain)
        numbers = {
            name: float(value) for name, value in flat.items() if type(value) in (int, float)
        }
        self._build.monitor.finished(stage.display_name, seconds, numbers)
        for name in ("headline", *flatten(stage.config)):
            flat.pop(name, None)
        measured = {
            name: value
            for name, value in flat.items()
            if isinstance(value, float) and not _SETTINGS & set(name.split("."))
        }
        constants = {
            f"summary/{name}": each
            for name, each in flat.items()
            if isinstance(each, int | str | float) and name not in measured
        }
        times = {"system/stage_seconds": seconds, "system/starting_seconds": self._waited}
        tracker.metrics(self._key, {**times, **measured}, step=0)
        tracker.params(self._key, constants)
        tracker.tags(self._key, {NOTE_TAG: summary.headline})
        tracker.artifact(self._key, str(artifact.folder.local(artifacts.RECORD)))
        folder = PAGE_FILES if stage.name in _PAGES else f"{PAGE_FILES}/{stage.name}"
        for name in summary.show:
            path = str(artifact.folder.local(name))
            tracker.artifact(self._key, path)
            at_the_top = name == page_name(artifact)
            tracker.artifact(self._build.parent, path, "" if at_the_top else folder)
        return artifact


def name_run(label: str, made_by: dict[str, Any]) -> str:
    """The name of a run of a recipe: the recipe's, and what the command changes of it."""
    words = shlex.split(made_by["command"])
    return " ".join([label, *(word for word in words if _CHANGE.match(word))])


def source_tags(made_by: dict[str, Any]) -> dict[str, str]:
    """The tags in which MLflow expects the command, and the commit if there is one."""
    tags = {"mlflow.source.name": made_by["command"], "mlflow.source.type": "LOCAL"}
    if made_by["commit"]:
        tags["mlflow.source.git.commit"] = made_by["commit"]
    return tags


def _is_alone() -> bool:
    """Whether the cluster is a single machine."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return len(nodes) == 1 and nodes[0]["Resources"].get("CPU", 0) >= 1


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
