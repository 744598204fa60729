"""One trial, in its own process. It reads finished artifacts by index, without Ray Data, and holds
only its own CPUs and GPUs, so trials cannot deadlock waiting for each other.

A sweep over a key that nothing reads looks normal, so two checks: the resolved `finetune` block
holds each value (`resolve_settings`), and what training measured equals it (`check_applied`).
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Reporter
from rungwise.core.stages.notes import read_note, write_note
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, OnEpoch, finetune, load_data
from rungwise.models.device import use_threads
from rungwise.tuning.config import FINETUNE, SweepStageConfig, Values, resolve_settings
from rungwise.tuning.record import Epoch, SweepTrial, read_record, write_record

_PREFIX = "effective/"  # of metrics that are measured settings, as in effective/learning_rate
_PRECISION = 1e-6  # relative; measured values may be float32


def split_metrics(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Separate metrics from measured settings, the latter by key of the `finetune` block."""
    measured = {k.removeprefix(_PREFIX): v for k, v in metrics.items() if k.startswith(_PREFIX)}
    return {k: v for k, v in metrics.items() if not k.startswith(_PREFIX)}, measured


def check_applied(trial: str, values: Mapping[str, Any], measured: Mapping[str, float]) -> None:
    """Raise UserError if a drawn value was not in force; unmeasured keys are not checked."""
    for key, value in values.items():
        name = key.removeprefix(f"{FINETUNE}.")
        if name not in measured or value is None:
            continue  # null defers to another key
        if not math.isclose(value, measured[name], rel_tol=_PRECISION):
            raise UserError(
                f"{trial}: {key} was drawn as {value!r}, but {measured[name]:g} was in force, so "
                "its score is not that of its settings; take the key out of sweep.space, or mend "
                "what it does not reach (a batch larger than the training split is cut to it)"
            )


DECISIONS = "milestones.json"  # of successive halving, in the artifact until the sweep ends


# The training of a trial, by settings, inputs, seed, what to call after an epoch, and a state that
# `on_epoch` received or None. Metrics named `effective/<key of the finetune block>` are settings as
# measured: the optimizer's peak learning rate, the rows of the first batch.
Train = Callable[[FinetuneConfig, dict[str, Artifact], int, OnEpoch, bytes | None], None]


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
class SweepJob:
    """The values that all trials of a sweep share, sent to their processes."""

    config: SweepStageConfig
    inputs: Mapping[str, Artifact]
    output: Folder
    metric: str  # of the validation split; higher is better
    report: Reporter
    train: Train


class _AtMilestone(Exception):
    """Ends the training of a trial that waits at a milestone."""


def run_trial(config: dict[str, Any], *, job: SweepJob, cpus: float) -> None:
    """Run a trial, `{"trial": {"number": ..., "values": {dotted key: value}}}`, for Ray Tune, with
    as many threads as it holds whole CPUs.

    Stops at epoch `until`, if given. Raises UserError if the score is not finite.
    """
    from ray import tune
    from ray.exceptions import RayActorError

    use_threads(cpus)
    trial, start = new_record(job.config, **config["trial"]), None
    if job.config.sweep.halving:
        earlier = read_record(trial.name, job.output)
        if earlier is not None and earlier.saved_epoch is not None:
            file = earlier.state_file(earlier.saved_epoch)
            if read_note(job.output, f"{file}.json"):
                start = job.output.read_bytes(file)
        if earlier is not None and (start is not None or earlier.saved_epoch is None):
            trial = earlier
    # Epochs after the saved state run again.
    trial.history = trial.history[: trial.saved_epoch or 0]
    trial.state, trial.error = "running", ""
    write_record(trial, job.output)
    settings = trial.finetune
    until = config.get("until")
    if not trial.history:
        job.report.nested(trial.name, trial.parameters())
    before, start_time = trial.seconds, time.monotonic()

    def on_epoch(
        epoch: int, metrics: dict[str, float], state: Callable[[], bytes] | None = None
    ) -> None:
        scores, measured = split_metrics(metrics)
        # Prefer the score of the kept weights, which can be of an earlier epoch.
        score = scores.get("kept/score", scores[job.metric])
        if not math.isfinite(score):
            raise UserError(f"{trial.name}: {job.metric} is {score} after epoch {epoch}")
        trial.effective |= measured
        trial.seconds = before + time.monotonic() - start_time
        loss = scores.get("kept/loss", scores.get("loss", math.nan))
        row = Epoch(
            epoch=epoch,
            score=score,
            loss=loss if math.isfinite(loss) else None,
            seconds=round(trial.seconds, 3),
            metrics={key: value for key, value in scores.items() if math.isfinite(value)},
        )
        trial.history, trial.score, trial.loss = (*trial.history, row), row.score, row.loss
        # Mark the last epoch as the end: Tune may cut short whatever follows.
        trial.state = "finished" if epoch == settings.epochs else "running"
        if epoch == until and trial.state == "running":
            assert state is not None, "successive halving needs the state of training"
            file = trial.state_file(epoch)
            job.output.write_bytes(file, state())
            digest = {file: job.output.sha256(file)}
            write_note(job.output, f"{file}.json", {"epoch": epoch}, digest)
            former, trial.saved_epoch, trial.state = trial.saved_epoch, epoch, "waiting"
            write_record(trial, job.output)
            if former is not None:
                job.output.remove(trial.state_file(former))
        else:
            write_record(trial, job.output)
        job.report.metrics(row.points(), epoch, run=trial.name)
        job.report.flush()
        tune.report({"score": score, "epoch": epoch, "values": trial.values, "measured": measured})
        if trial.state == "waiting":
            raise _AtMilestone

    try:
        job.train(settings, dict(job.inputs), trial.seed, on_epoch, start)
        if not trial.history:
            raise UserError(f"{trial.name}: its training ended without an epoch")
        trial.state = "finished"
        trial.effective["epochs"] = float(trial.history[-1].epoch)
    except _AtMilestone:
        pass
    except RayActorError:
        raise  # the board has died with the driver; the record says how far the trial came
    except Exception as error:
        trial.fail(str(error) or type(error).__name__)
        raise
    finally:
        # Tune stops a trial by SystemExit; the driver then writes its final state.
        if trial.state != "running":
            write_record(trial, job.output)
        job.report.flush()


def new_record(config: SweepStageConfig, number: int, values: Values) -> SweepTrial:
    """The record of a trial that has not begun."""
    return SweepTrial(
        number=number,
        values=values,
        finetune=resolve_settings(config, values),
        seed=config.sweep.seed,
    )
