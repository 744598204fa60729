"""The training loop: plain PyTorch, without Ray and MLflow, to be read from top to bottom.

A run is a function of its config. Step s reads positions [s B, (s + 1) B) of the computed order,
its learning rate follows from s, and dropout is seeded by (seed, s, logical worker). So a killed
run continues from its last checkpoint and ends bit for bit as it would have ended. (Except with a
budget of seconds: how many steps fit into an hour is no function of a config.)

A loss is a sum and a count until the last all-reduce: every micro-batch is divided by the counts of
the whole global batch, so splitting it over micro-batches and workers in any way gives the same
gradient.

P parts of the objective
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.randomness import bits
from rungwise.core.stages.context import Reporter
from rungwise.models.device import keep_freed_memory, multiplies_bfloat16
from rungwise.models.losses.objectives import CarriesState, Objective
from rungwise.models.transformer.block import recompute_activations, set_stream
from rungwise.training.average import WeightAverage
from rungwise.training.checkpoint import Checkpoints
from rungwise.training.config import GradientConfig, Precision
from rungwise.training.curriculum import Phase, phase_at, shared_steps
from rungwise.training.feed import Prefetched, logical_ranks
from rungwise.training.optimizer import build_optimizers, learning_rate_at
from rungwise.training.outliers import Outliers
from rungwise.training.parallel import Group, distribute
from rungwise.training.progress import Progress, has_stalled
from rungwise.training.step import Step
from rungwise.training.step_metrics import (
    StepMetrics,
    StepTotals,
    check_start,
    log_step,
    record_validation,
    report_again,
    report_saves,
)
from rungwise.training.streams import StreamStates
from rungwise.training.throughput import Clock, Costs, group_matmul_rate

_NOTICE_SECONDS = 1.0  # between two checks for a notice that a machine will go away


def train(
    config: GradientConfig,
    model: nn.Module,
    objective: Objective,
    phases: Sequence[Phase],
    vocab_size: int,
    checkpoints: Checkpoints,
    compute: ComputeConfig,
    group: Group,
    report: Reporter,
    drawn: bool = True,
    notice: Callable[[], bool] = lambda: False,
) -> tuple[Progress, Costs]:
    """Train `model` in place until the end, from the newest sound checkpoint if any.

    `compute` changes the numbers only by rounding, and the draw of dropout; with as many
    logical workers, only by the order of sums. With `drawn`, the
    weights are random, and the first losses are compared with their known values. `notice` returns
    True once for each notice that a machine will go away, to save at once; all workers ask at the
    same steps. Returns the progress and the references for throughput. Raises UserError if too many
    steps are not finite or checkpoints cannot be written.
    """
    keep_freed_memory()
    bfloat16 = uses_bfloat16(config.precision, group.device)
    # On a CPU, LayerNorm takes bfloat16 weights only if its input is bfloat16.
    narrow = bfloat16 and (config.bfloat16_stream or group.device.type == "cuda")
    exchange = distribute(model, group, compute.parallel, compute.shard_workers, narrow)
    optimizers = build_optimizers(model, config.optimizer, bfloat16)
    states = _stream_states(model, phases[0], config, group)
    average = config.average and WeightAverage(model, config.average, config.steps)
    progress = checkpoints.resume(model, optimizers, states, average)
    if not progress.attempts or progress.step < config.steps:
        progress.attempts.append({"step": progress.step, "workers": group.world_size})
    recompute_activations(model, compute.recompute_activations)
    set_stream(model, torch.bfloat16 if bfloat16 and config.bfloat16_stream else None)
    rate_dtype = torch.bfloat16 if bfloat16 else torch.float32
    costs = Costs(group_matmul_rate(group, rate_dtype), compute.price_per_hour)
    rule = config.skip_outliers
    step_metrics = StepMetrics(
        progress,
        objective.parts,
        group,
        config.spike_factor,
        config.max_skipped_steps,
        rule and Outliers(rule, progress.compared, group.device),
    )
    step = Step(
        model,
        objective,
        exchange,
        optimizers,
        config.optimizer,
        group,
        bfloat16,
        compute.compile,
        step_metrics.stands_out if rule else None,
    )
    parts_of_a_batch = compute.parts_of_a_batch(group.world_size)
    ranks = logical_ranks(group.rank, group.world_size, parts_of_a_batch)
    plateau_end = shared_steps(config)  # from which a longer run can continue
    if group.leads:
        for earlier in progress.prolonged[-1:]:
            if earlier["step"] == progress.step:
                named = f"{earlier['label']}-{earlier['fingerprint']}"
                report.note(f"goes on from step {progress.step} of {named}")
        if parts_of_a_batch != (compute.logical_workers or group.world_size):
            report.note(
                f"compute.logical_workers is {compute.logical_workers}, which the "
                f"{group.world_size} workers left cannot share evenly: each computes one part"
            )
        report_again(progress, report)
        report.progress(progress.step, config.steps)
    if progress.step == 0:
        first = validate(step, phases[0], config, group)
        record_validation(progress, first, report, group)
        if group.leads:
            report.progress(0, config.steps, loss=first["loss"])
        if drawn:
            check_start(first, objective, vocab_size, report, group)
    clock = Clock(progress, costs)
    before = progress.seconds
    began = asked = time.monotonic()
    logged = False
    feed = Prefetched(
        lambda number: phase_at(phases, number).step(number),
        progress.step,
        config.steps,
        group.device.type == "cuda",
    )
    try:
        while not is_finished(progress, config):
            phase = phase_at(phases, progress.step)
            waited = time.perf_counter()
            batch = feed.next()
            clock.waited += time.perf_counter() - waited

            model.train()
            seeds = [int(bits(config.seed, progress.step, each)) >> 1 for each in ranks]
            rate = learning_rate_at(spent_steps(progress, config), config.steps, config.optimizer)
            parts = [part.to(group.device, non_blocking=True) for part in batch.micro_batches]
            if states is not None:
                parts = [states.enter(part) for part in parts]
            now = time.monotonic()
            totals = StepTotals(
                torch.stack([objective.counts(part) for part in parts]).sum(0),
                batch,
                seconds=before + now - began,
                ask=now - asked > _NOTICE_SECONDS,
                group=group,
            )
            sums, norm, stood_out = step(parts, totals.counts, rate, states, seeds)
            clock.computed += step.computed_seconds
            if average is not None:
                average.update(progress.step + 1)

            must_leave = False
            if step_metrics.enter(totals, sums, norm, stood_out, phase.flops_per_token):
                asked = time.monotonic()
                must_leave = group.count(notice()) > 0
                if not logged:  # wait for the first losses
                    step_metrics.gather(report)
                if group.leads:
                    newest = {} if logged else step_metrics.newest_loss()
                    report.progress(progress.step, config.steps, **newest)
            done = progress.step
            save = done % compute.checkpoint_every_steps == 0 or done == plateau_end or must_leave
            if done % config.validation_every_steps == 0 or is_spent(progress, config):
                began_validation = time.perf_counter()
                with average.in_use() if average else contextlib.nullcontext():
                    measured = validate(step, phase, config, group)
                record_validation(progress, measured, report, group)
                clock.validated += time.perf_counter() - began_validation
            ends = is_finished(progress, config)
            log = done % config.log_every_steps == 0 or ends
            if save or log:
                step_metrics.gather(report)
            if log:
                values, logged = step_metrics.take(), True
                straggler = clock.straggler(group)
                if group.leads and values:
                    log_step(progress, values, rate, clock, config.steps, straggler, report)
                clock.restart(progress)
            if save or ends:
                wait = ends or must_leave
                clock.stalled += checkpoints.save(
                    model, optimizers, progress, wait, must=ends, states=states, average=average
                )
                report_saves(checkpoints, progress, report, group)
    finally:
        feed.close()
        checkpoints.close()
    return progress, costs


@torch.no_grad()
def validate(step: Step, phase: Phase, config: GradientConfig, group: Group) -> dict[str, float]:
    """Losses and accuracies over a phase's validation instances, with the same masks each time.

    `perplexity` is that of the objective's first part, the one over tokens; `bits_per_byte` is
    given if every token of the text is predicted and its bytes are known.
    """
    model, objective = step.model, step.objective
    model.eval()
    total = torch.zeros(3, len(objective.parts), dtype=torch.float64, device=group.device)
    states = _stream_states(model, phase, config, group)  # separate from training's
    batches = (batch.to(group.device) for batch in phase.validation())
    for part in step.together(batches):
        if states is not None:
            part = states.enter(part)
        losses = step.losses(part)
        if states is not None:
            states.leave(part, losses.state)
            states.settle(torch.tensor(True, device=group.device))
        total += losses.packed()
    values = StepMetrics.metrics(group.sum(total), objective.parts)
    nats = values[f"{objective.parts[0]}_loss"]
    values["perplexity"] = math.exp(min(nats, 700.0))
    if phase.tokens_per_byte is not None:
        values["bits_per_byte"] = nats / math.log(2) * phase.tokens_per_byte
    return values | {"sequence_length": float(phase.sequence_length)}


def _stream_states(
    model: nn.Module, phase: Phase, config: GradientConfig, group: Group
) -> StreamStates | None:
    if phase.streams is None:
        return None
    shape = cast(CarriesState, model).state_shape
    return StreamStates(shape, phase.streams, config.global_batch_size, group.device)


def spent_steps(progress: Progress, config: GradientConfig) -> float:
    """Progress in steps of the schedule, by the budget with the largest share spent."""
    shares = [float(progress.step)]
    if config.max_tokens is not None:
        shares.append(config.steps * progress.tokens / config.max_tokens)
    if config.max_seconds is not None:
        shares.append(config.steps * progress.seconds / config.max_seconds)
    return max(shares)


def is_spent(progress: Progress, config: GradientConfig) -> bool:
    """Whether a budget is used up."""
    return spent_steps(progress, config) >= config.steps


def is_finished(progress: Progress, config: GradientConfig) -> bool:
    """Whether the run has ended: a budget is used up, or the validation loss has stalled."""
    losses = [row["loss"] for row in progress.validation]
    return is_spent(progress, config) or has_stalled(losses, config.early_stop)


def uses_bfloat16(precision: Precision, device: torch.device) -> bool:
    """Whether matrix products use bfloat16 on `device`."""
    if precision != "auto":
        return precision == "bfloat16"
    return multiplies_bfloat16(device)
