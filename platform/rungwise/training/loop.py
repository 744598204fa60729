"""The training loop: plain PyTorch, without Ray and MLflow, to be read from top to bottom.

A run is a function of its config: a killed run continues from its last checkpoint and ends bit for
bit as it would have ended (except with a budget of seconds). A loss is a sum and a count until the
last all-reduce, so splitting a batch in any way gives the same gradient.
"""

import contextlib
import time
from collections.abc import Sequence

import torch
from torch import nn

from rungwise.core.randomness import bits
from rungwise.models.device import keep_freed_memory, multiplies_bfloat16
from rungwise.models.transformer.block import recompute_activations
from rungwise.training import throughput
from rungwise.training.checkpoint import Checkpoints
from rungwise.training.config import GradientConfig, GradientFit, Precision
from rungwise.training.feed import DataPhase, Prefetched, find_phase, logical_ranks, open_phases
from rungwise.training.optimizer import WeightAverage, build_optimizers, compute_learning_rate
from rungwise.training.parallel import Worker, distribute
from rungwise.training.state import RunState
from rungwise.training.step import Step, new_streams, validate

_NOTICE_SECONDS = 1.0  # between two checks for a notice that a machine will go away


def train(
    config: GradientFit,
    model: nn.Module,
    turns: Sequence[DataPhase],
    checkpoints: Checkpoints,
    worker: Worker,
    first_loss: float | None = None,
) -> tuple[throughput.Progress, throughput.Costs]:
    """Train `model` in place until the end, from the newest sound checkpoint if any.
    `worker.compute` changes the numbers only by rounding and by which dropout is drawn; with the
    same number of logical workers, only by the order of sums. `first_loss` is the expected loss of
    predicting a word with random weights. Returns the progress and the references for throughput.
    Raises UserError if too many steps are not finite or checkpoints cannot be written."""
    settings, objective = config.pretrain, config.objective
    group, compute, report = worker.group, worker.compute, worker.report
    keep_freed_memory()
    bfloat16 = uses_bfloat16(settings.precision, group.device)
    phases = open_phases(config, turns, worker)
    streams = new_streams(model, phases[0], group)
    # On a CPU, LayerNorm takes bfloat16 weights only if its input is bfloat16.
    on_gpu = group.device.type == "cuda"
    exchange = distribute(model, group, compute.parallel, bfloat16 and on_gpu)
    recompute_activations(model, compute.recompute_activations)
    optimizers = build_optimizers(model, settings.optimizer, bfloat16)
    average = settings.average and WeightAverage(model, settings.average, settings.steps)
    state = RunState(model, optimizers, average.tensors if average else {}, streams)
    progress = checkpoints.resume(state)
    if not progress.attempts or progress.step < settings.steps:
        progress.attempts.append({"step": progress.step, "workers": group.world_size})
    for place in checkpoints.skipped:
        report.note(f"{place} is damaged: goes on from step {progress.step}")
    throughput.report_again(progress, report)
    report.progress(*measure_progress(progress, settings))
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    costs = throughput.Costs(throughput.group_matmul_rate(group, dtype), compute.price_per_hour)
    step_metrics = throughput.StepMetrics(progress, config, worker)
    step = Step(
        model, objective, exchange, optimizers, settings.optimizer, group, bfloat16, compute.compile
    )
    ranks = logical_ranks(group.rank, group.world_size, worker.parts_of_a_batch)
    if worker.parts_of_a_batch != (compute.logical_workers or group.world_size):
        report.note(
            f"compute.logical_workers is {compute.logical_workers}, which the "
            f"{group.world_size} workers left cannot share evenly: each computes one part"
        )

    def validate_now() -> float:
        """Validate the weights, or their average; returns the seconds that this took."""
        began, done = time.perf_counter(), progress.step
        due = phases if objective.members else [find_phase(phases, done - 1)]
        with average.swap_averages(done) if average else contextlib.nullcontext():
            row = {"step": done, "tokens": progress.tokens, **validate(step, due)}
        throughput.log_validation(progress, row, report)
        return time.perf_counter() - began

    last = progress.validation[-1]["step"] if progress.validation else -1
    if progress.step > last and progress.step % settings.validation_every_steps == 0:
        validate_now()
    if progress.step == 0:
        first = progress.validation[0]
        report.progress(0, settings.steps, loss=first["loss"])
        if first_loss is not None:
            throughput.check_start(first, objective, first_loss, report)
    clock = throughput.Clock(progress, costs)
    before = progress.seconds
    began = last_notice = time.monotonic()
    begin, end = progress.step, settings.steps
    feed = Prefetched(lambda number: find_phase(phases, number).step(number), begin, end, on_gpu)
    try:
        while not is_finished(progress, settings):
            phase = find_phase(phases, progress.step)
            step.objective = phase.objective
            waiting = time.perf_counter()
            batch = feed.next()
            clock.waited += time.perf_counter() - waiting

            model.train()
            spent = spent_steps(progress, settings)
            rate = compute_learning_rate(spent, settings.steps, settings.optimizer)
            seeds = [int(bits(settings.seed, progress.step, each)) >> 1 for each in ranks]
            parts = [part.to(group.device, non_blocking=True) for part in batch.micro_batches]
            if streams is not None:
                parts = [streams.enter(part) for part in parts]
            now = time.monotonic()
            totals = throughput.StepTotals(
                torch.stack([phase.objective.counts(part) for part in parts]).sum(0),
                batch,
                seconds=before + now - began,
                ask=now - last_notice > _NOTICE_SECONDS,
                group=group,
            )
            sums, norm = step(parts, totals.counts, rate, streams, seeds)
            clock.computed += step.computed_seconds
            if average is not None:
                average.update(progress.step + 1)

            must_leave = False
            if step_metrics.enter(totals, sums, norm, phase.flops_per_token):
                last_notice = time.monotonic()
                must_leave = group.count(worker.notice()) > 0
                report.progress(*measure_progress(progress, settings))
            done = progress.step
            if done % settings.validation_every_steps == 0 or is_spent(progress, settings):
                clock.validated += validate_now()
            ends = is_finished(progress, settings)
            log = done % settings.log_every_steps == 0 or ends
            # From the end of the plateau a longer run can continue.
            save = done % compute.checkpoint_every_steps == 0 or done == settings.shared_steps
            if log or save or must_leave:
                step_metrics.gather()
            if log:
                values = step_metrics.take()
                straggler = clock.straggler(group)
                if values:
                    timing = clock.timing(progress) | straggler
                    values = {"learning_rate": rate, **values}
                    throughput.log_step(progress, values, timing, report)
                    figures = {"loss": values["loss"], "tokens/s": timing["tokens_per_second"]}
                    report.progress(*measure_progress(progress, settings), **figures)
                clock.restart(progress)
            if save or must_leave or ends:
                wait = ends or must_leave
                clock.stalled += checkpoints.save(state, progress, wait, must=ends)
                if must_leave and not ends and not checkpoints.settled[-1].error:
                    report.note(f"saved at step {done:,}")
                throughput.log_saves(progress, checkpoints.settled, report)
    finally:
        feed.close()
        checkpoints.close()
    return progress, costs


def measure_progress(progress: throughput.Progress, config: GradientConfig) -> tuple[float, float]:
    """How far a run is, and its end, by the most spent of its steps, tokens and seconds."""
    budgets = [(float(progress.step), float(config.steps))]
    if config.max_tokens is not None:
        budgets.append((progress.tokens, config.max_tokens))
    if config.max_seconds is not None:
        budgets.append((progress.seconds, config.max_seconds))
    return max(budgets, key=lambda budget: budget[0] / budget[1])


def spent_steps(progress: throughput.Progress, config: GradientConfig) -> float:
    """Progress in steps of the schedule."""
    spent, end = measure_progress(progress, config)
    return config.steps * spent / end


def is_spent(progress: throughput.Progress, config: GradientConfig) -> bool:
    """Whether a budget is used up."""
    return spent_steps(progress, config) >= config.steps


def is_finished(progress: throughput.Progress, config: GradientConfig) -> bool:
    """Whether the run has ended: a budget is used up, or the validation loss has stalled."""
    losses, stop = [row["loss"] for row in progress.validation], config.early_stop
    if is_spent(progress, config) or stop is None or len(losses) <= stop.patience:
        return is_spent(progress, config)
    before, last = losses[: -stop.patience], losses[-stop.patience :]
    return min(last) > min(before) - stop.minimum_improvement


def uses_bfloat16(precision: Precision, device: torch.device) -> bool:
    """Whether matrix products use bfloat16 on `device`."""
    if precision != "auto":
        return precision == "bfloat16"
    return multiplies_bfloat16(device)
