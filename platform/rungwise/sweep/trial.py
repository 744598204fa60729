"""One trial, in its own process. It reads finished artifacts by index, without Ray Data, and holds
only its own CPUs and GPUs, so trials cannot deadlock waiting for each other.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Reporter
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, OnEpoch, finetune, load_data
from rungwise.sweep import record as records
from rungwise.sweep.config import NoScheduler, PbtScheduler, SweepStageConfig
from rungwise.sweep.draws import Values, settings_of, upstream_of
from rungwise.sweep.effective import inputs_of, split_metrics
from rungwise.sweep.record import Saved, TrialRecord

STATES = ".states"  # training states to resume from, in the artifact until the sweep ends
DECISIONS = "rungs.json"  # of successive halving, kept as long
_POINTER = "saved.json"


class Train(Protocol):
    """The training of a trial. `start` is a state that `on_epoch` received, or None.

    Metrics named `effective/<key of the finetune block>` are settings as measured: the optimizer's
    peak learning rate, the rows of the first batch.
    """

    def __call__(
        self,
        settings: FinetuneConfig,
        inputs: dict[str, Artifact],
        seed: int,
        on_epoch: OnEpoch,
        start: bytes | None,
    ) -> None: ...


def train(
    settings: FinetuneConfig,
    inputs: dict[str, Artifact],
    seed: int,
    on_epoch: OnEpoch,
    start: bytes | None,
) -> None:
    data = load_data(inputs["task"], inputs["tokenizer"], inputs["pretrain"], settings)
    finetune(settings, data, seed, on_epoch, start)


@dataclass(frozen=True)
class Job:
    """The values that all trials of a sweep share, sent to their processes."""

    config: SweepStageConfig
    inputs: Mapping[str, Artifact]
    output: Folder
    metric: str  # of the validation split; higher is better
    report: Reporter
    train: Train

    @property
    def population(self) -> PbtScheduler | None:
        scheduler = self.config.sweep.scheduler
        return scheduler if isinstance(scheduler, PbtScheduler) else None

    @property
    def goes_on(self) -> bool:
        """Whether trials resume from saved states."""
        return not isinstance(self.config.sweep.scheduler, NoScheduler)


class _AtTheRung(Exception):
    """Ends the training of a trial that waits at a rung."""


def run_trial(config: dict[str, Any], *, job: Job) -> None:
    """Run one trial, `{"trial": {"number": ..., "values": {dotted key: value}}}`, for Ray Tune.

    Stops at epoch `until`, if given. Raises UserError if the score is not finite.
    """
    from ray import tune
    from ray.exceptions import RayActorError

    # A PBT trial that takes over another's state gets its whole config, number included, but keeps
    # its own name.
    name = tune.get_context().get_trial_name()
    assert name is not None
    trial = _begin(name, config["trial"]["values"], _handed_over(), job)
    settings = settings_of(job.config, trial.values)
    until = config.get("until")
    if not trial.history:
        job.report.nested(name, trial.parameters())
    before, began = trial.seconds, time.monotonic()

    def on_epoch(
        epoch: int, metrics: dict[str, float], state: Callable[[], bytes] | None = None
    ) -> None:
        shown, measured = split_metrics(metrics)
        # Prefer the score of the kept weights, which can be of an earlier epoch.
        score = shown.get("kept/score", shown[job.metric])
        if not math.isfinite(score):
            raise UserError(f"{name}: {job.metric} is {score} after epoch {epoch}")
        trial.effective |= measured
        trial.seconds = before + time.monotonic() - began
        loss = shown.get("kept/loss", shown.get("loss", math.nan))
        row = {
            "epoch": epoch,
            "score": score,
            "loss": loss if math.isfinite(loss) else None,
            "seconds": round(trial.seconds, 3),
            "metrics": {key: value for key, value in shown.items() if math.isfinite(value)},
        }
        saved = None
        if job.population:
            row["values"] = {key: trial.values[key] for key in job.population.mutations}
            if epoch % job.population.perturbation_interval_epochs == 0:
                assert state is not None, "population based training needs the state of training"
                saved = _save(name, epoch, len(trial.history) + 1, state, job.output)
                trial.saved = saved
        trial.history.append(row)
        # Mark the last epoch as the end: Tune may cut short whatever follows.
        trial.state = "finished" if epoch == settings.epochs else "running"
        replaced = trial.saved
        if epoch == until and trial.state == "running":
            assert state is not None, "successive halving needs the state of training"
            trial.saved = _save(name, epoch, len(trial.history), state, job.output)
            trial.state = "waiting"
        records.write(trial, job.output)
        if until and replaced and replaced is not trial.saved:
            job.output.remove(f"{STATES}/{replaced.file}")
        job.report.metrics(trial.points(row), epoch, run=name)
        job.report.flush()
        result = {
            "score": score,
            "epoch": epoch,
            "epochs_asked": settings.epochs,
            "values": trial.values,
            "measured": measured,
        }
        if saved:
            with tempfile.TemporaryDirectory(prefix="rungwise-") as folder:
                (Path(folder) / _POINTER).write_text(json.dumps(asdict(saved)))
                tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))
        else:
            tune.report(result)
        if trial.state == "waiting":
            raise _AtTheRung

    start = job.output.read_bytes(f"{STATES}/{trial.saved.file}") if trial.saved else None
    try:
        job.train(settings, inputs_of(job.inputs, trial.upstream), trial.seed, on_epoch, start)
        if not trial.history:
            raise UserError(f"{name}: its training ended without an epoch")
        trial.state = "finished"
        trial.effective["epochs"] = float(trial.history[-1]["epoch"])
    except _AtTheRung:
        pass
    except RayActorError:
        raise  # the board has died with the driver; the record says how far the trial came
    except Exception as error:
        trial.state, trial.error = "failed", str(error) or type(error).__name__
        raise
    finally:
        # Tune stops a trial by SystemExit; the driver then writes its final state.
        if trial.state != "running":
            records.write(trial, job.output)
        job.report.flush()


def _begin(name: str, values: Values, saved: Saved | None, job: Job) -> TrialRecord:
    """The record of a trial that starts, or resumes from `saved` or its own last state."""
    earlier = records.read(name, job.output) if job.goes_on else None
    if earlier is None:
        trial = TrialRecord(
            name=name,
            number=int(name.rpartition("-")[2]),
            drawn=values,
            values=values,
            upstream=upstream_of(job.config.sweep, values),
            settings={},
            seed=job.config.sweep.seed,
        )
    else:
        trial = earlier
        if saved is None:
            saved = earlier.saved
        elif saved.trial != name:
            trial.taken_over.append(
                {"from": saved.trial, "epoch": saved.epoch, "rows": len(trial.history)}
            )
            saved.rows = len(trial.history)
        # Epochs after the resumed state run again.
        trial.history = trial.history[: saved.rows] if saved else []
        if job.population:
            trial.values, trial.upstream = values, upstream_of(job.config.sweep, values)
            trial.effective = {}  # may have been measured with other values
    trial.saved, trial.state, trial.error = saved, "running", None
    trial.settings = settings_of(job.config, values).model_dump(mode="json")
    records.write(trial, job.output)
    return trial


def _handed_over() -> Saved | None:
    """The state Tune hands over: the trial's own after a pause, or that of a better trial."""
    from ray import tune

    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return Saved(**json.loads((Path(folder) / _POINTER).read_text()))


def _save(name: str, epoch: int, rows: int, state: Callable[[], bytes], output: Folder) -> Saved:
    # Tune gets only the file's name: the state itself is in the artifact, so that a killed sweep
    # resumes without Tune's own state.
    saved = Saved(name, epoch, f"{name}-{rows:04d}", rows)
    output.write_bytes(f"{STATES}/{saved.file}", state())
    return saved
