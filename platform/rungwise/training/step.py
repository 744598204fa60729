"""One optimizer step, as the loop runs it and as benchmarks and tests measure it, and validation.

Nothing in a step waits for the device, except for losses that need the vectors of the whole batch.

P parts of the objective
"""

import functools
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rungwise.core.errors import UserError
from rungwise.instances.batch import Batch
from rungwise.models.losses.objectives import BatchShapes, Losses, LossSum, Objective
from rungwise.training.optimizer import AnyOptimizerConfig, Optimizers, clip_gradients, update
from rungwise.training.parallel import Exchange, Group
from rungwise.training.state import StreamStates

if TYPE_CHECKING:  # a bare machine with PyTorch has no instances to read
    from rungwise.training.feed import Phase

_MOST_GRAPHS = 64  # compiled graphs of one function


@dataclass
class Step:
    """Forward, backward, clipping and update of `model` in place. With `bfloat16`, matrix products
    use it."""

    model: nn.Module
    objective: Objective
    exchange: Exchange
    optimizers: Optimizers
    config: AnyOptimizerConfig
    group: Group
    bfloat16: bool
    compile: bool = False
    # Host time in forward and backward of the last step, before waiting for other workers.
    computed_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._trained: dict[str, list[bool]] = {}  # of each parameter, by objective of a mixture
        self._compiled = None
        if self.compile:
            self._compiled = _compile(self.objective, self.model, self.group)

    def losses(self, part: Batch[Tensor]) -> LossSum:
        """The sums over a micro-batch, from one forward pass."""
        with self._autocast():
            if self._compiled is None:
                return self.objective(self.model, part)
            (total, correct, state), counts = self._compiled(part)
            return LossSum(total, counts, correct, self.objective.parts, state)

    def _autocast(self) -> torch.autocast:
        kind = self.group.device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self.bfloat16)

    def with_vectors(
        self, parts: Iterable[Batch[Tensor]], seeds: Sequence[int] = ()
    ) -> Iterable[Batch[Tensor]]:
        """Add the vectors of the whole global batch to its micro-batches, if losses need them.
        The forward passes that compute them draw the dropout of `seeds` again."""
        if not self.objective.needs_whole_batch:
            return parts
        parts, group = list(parts), self.group
        if group.world_size == len(parts) == 1:
            return parts
        device = group.device
        forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with forked, torch.no_grad(), self._autocast():
            own = [self.objective.outputs(self.model, part) for part in _seed_dropout(parts, seeds)]
        by_rank = group.gather(own)
        whole_2ND = torch.cat([each for one in by_rank for each in one], dim=1).to(device)
        begin = sum(each.shape[1] for one in by_rank[: group.rank] for each in one)
        whole: list[Batch[Tensor]] = []
        for part in parts:
            place_B = torch.arange(begin, begin + len(part.ids), device=device)
            vectors: Any = {"vectors": whole_2ND, "place": place_B}
            whole.append(replace(part, **vectors))
            begin += len(part.ids)
        return whole

    def __call__(
        self,
        parts: Sequence[Batch[Tensor]],
        counts_P: Tensor,
        learning_rate: float,
        streams: StreamStates | None = None,
        seeds: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """Take one step over micro-batches on the device. Losses are divided by `counts_P`, those
        of the global batch. Each of `seeds` seeds the dropout of as many micro-batches. Returns the
        sums (3, P) of `LossSum.packed` on this worker, and the gradient norm ()."""
        device = self.group.device
        sums_3P = torch.zeros(3, len(self.objective.parts), dtype=torch.float64, device=device)
        whole = list(self.with_vectors(parts, seeds))
        began = time.perf_counter()
        for number, part in enumerate(_seed_dropout(whole, seeds)):
            with self.exchange.backward(last=number == len(parts) - 1):
                losses = self.losses(part)
                losses.loss(counts_P).backward()
            sums_3P += losses.packed()
            if streams is not None:
                streams.leave(part, losses.state)
        self.computed_seconds = time.perf_counter() - began
        self.exchange.finish()
        untrained = self._part_untrained() if self.objective.mixture else {}
        norm = clip_gradients(self.model, self.config)
        update(self.optimizers, norm.isfinite(), learning_rate)
        if streams is not None:
            streams.settle(norm.isfinite())
        for parameter, gradient in untrained.items():
            parameter.grad = gradient
        self.exchange.zero()
        return sums_3P, norm

    def _part_untrained(self) -> dict[nn.Parameter, Tensor | None]:
        """Take the gradients from the parameters that this objective of a mixture does not train on
        any worker: without one they keep their weights and moments. Return what they had."""
        name, parameters = self.objective.name, [*self.model.parameters()]
        if name not in self._trained:  # does not change, so workers agree on it once
            has = [float(self.exchange.has_gradient(each)) for each in parameters]
            total = self.group.sum(torch.tensor(has, device=self.group.device))
            self._trained[name] = [count > 0 for count in total.tolist()]
        untrained: dict[nn.Parameter, Tensor | None] = {}
        for parameter, is_trained in zip(parameters, self._trained[name], strict=True):
            if not is_trained:
                untrained[parameter], parameter.grad = parameter.grad, None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)  # moves as on the other workers
        return untrained


def _seed_dropout(parts: Sequence[Batch[Tensor]], seeds: Sequence[int]) -> Iterator[Batch[Tensor]]:
    """Yield `parts`, and seed dropout before the first part of each logical worker."""
    each = len(parts) // max(1, len(seeds))
    for number, part in enumerate(parts):
        if seeds and number % each == 0:
            torch.manual_seed(seeds[number // each])
        yield part


def _compile(
    objective: Objective, model: nn.Module, group: Group
) -> Callable[[Batch[Tensor]], tuple[Losses, Tensor]]:
    """Compile a forward pass, from ids to the sums of losses and their counts. If workers exchange
    gradients, each function in `graphs` of the model's classes and the losses are graphs: the
    backward of a single one returns all gradients at its end, too late to overlap their exchange.
    Only the number of documents, and of rows of each sort, may vary. Raises UserError without a C++
    compiler for a CPU."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if group.device.type == "cpu" and shutil.which(compiler) is None:
        raise UserError(
            f"compute.compile: expected a C++ compiler, found no {compiler}; install one, or set "
            "compute.compile to false"
        )
    torch._dynamo.config.recompile_limit = _MOST_GRAPHS

    # None: a size that has changed once may change again.
    dynamic = None if objective.shapes is BatchShapes.ROWS_VARY else False
    graph = functools.partial(torch.compile, fullgraph=True, dynamic=dynamic)
    losses = objective.losses
    if group.world_size > 1:
        losses = graph(losses)
        for module in model.modules():
            for name in getattr(module, "graphs", ()):
                setattr(module, name, graph(getattr(module, name)))

    def run(part: Batch[Tensor]) -> tuple[Losses, Tensor]:
        return losses(objective.outputs(model, part), part), objective.counts(part)

    whole = graph(run) if group.world_size == 1 else run

    def of_any_size(part: Batch[Tensor]) -> tuple[Losses, Tensor]:
        for tensor in part.of_varying_size():
            if len(tensor) > 1:  # for 1 the compiler makes a graph of its own
                torch._dynamo.mark_dynamic(tensor, 0)
        return whole(part)

    return of_any_size


@torch.no_grad()
def validate(step: Step, phases: Sequence["Phase"]) -> dict[str, float]:
    """Losses and accuracies over a phase's validation instances, with the same masks each time, or
    of all members of a mixture. `perplexity` is that of the first part, over tokens;
    `bits_per_byte` needs a prediction of every token and the number of bytes."""
    model, group, phase = step.model, step.group, phases[0]
    model.eval()
    objective, device = phase.objective, group.device
    total_3P = torch.zeros(3, len(objective.parts), dtype=torch.float64, device=device)
    for each in phases:
        step.objective = each.objective
        streams = new_streams(model, each, group)  # separate from training's
        for part in step.with_vectors(batch.to(device) for batch in each.validation()):
            if streams is not None:
                part = streams.enter(part)
            losses = step.losses(part)
            if streams is not None:
                streams.leave(part, losses.state)
                streams.settle(torch.tensor(True, device=device))
            total_3P += losses.packed()
    # Added here, because the order of an all-reduce is not known.
    totals = [total for (total,) in group.gather([total_3P])]
    values = LossSum.unpacked(torch.stack(totals).sum(0), objective.parts).metrics()
    nats = values[f"{objective.parts[0]}_loss"]
    values["perplexity"] = math.exp(min(nats, 700.0))
    if phase.tokens_per_byte is not None:
        values["bits_per_byte"] = nats / math.log(2) * phase.tokens_per_byte
    return values | {"sequence_length": float(phase.sequence_length)}


def new_streams(model: Any, phase: "Phase", group: Group) -> StreamStates | None:
    """The streams of this worker at their start, if the model carries a state."""
    if phase.streams is None:
        return None
    rows = phase.global_batch_size
    return StreamStates(model.state_shape, phase.streams, rows, group.device)
