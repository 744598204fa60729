"""The workers of one training run: this worker's rank, sums over all, and the gradient exchange.

ddp     every worker holds the model; gradients are summed in buckets during backward
fsdp    every worker holds a part of each tensor (PyTorch's FSDP2; Zhao et al. 2023,
        arXiv:2304.11277); blocks are gathered when they are needed
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.stage import Reporter, SilentReporter
from rungwise.models.transformer.block import Block

Parallel = Literal["ddp", "fsdp"]

_BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Group:
    """This worker's place among the workers, and its device."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def current(cls, device: torch.device) -> "Group":
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(0, 1, device)

    @property
    def leads(self) -> bool:
        """True on the one worker that reports and makes checkpoints valid."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over the workers, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def count(self, value: int) -> int:
        """`value` summed over the workers."""
        if self.world_size == 1:
            return value
        return int(self.sum(torch.tensor([value], dtype=torch.int64, device=self.device)))

    def gather(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """The tensors of each worker, on the CPU, by rank. Waits for the device."""
        own = [tensor.cpu() for tensor in tensors]
        by_rank = [own] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(by_rank, own)
        return by_rank

    def from_leader(self, value: int) -> int:
        """The leader's `value`, on every worker."""
        return self.count(value if self.leads else 0)


@dataclass(frozen=True)
class Worker:
    """One process of a run: its place among the others, how it computes, and whom it tells."""

    group: Group
    compute: ComputeConfig
    reporter: Reporter = field(default_factory=SilentReporter)
    # Returns True once for each notice that a machine will go away, to save at once.
    notice: Callable[[], bool] = lambda: False

    @property
    def report(self) -> Reporter:
        """The leader's reporter; the other workers' reports go nowhere."""
        return self.reporter if self.group.leads else SilentReporter()

    @property
    def parts_of_a_batch(self) -> int:
        """The logical workers that share a batch."""
        return self.compute.parts_of_a_batch(self.group.world_size)


class Exchange:
    """Turns the gradients of one model into those of the global batch; here, of a lone worker."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def backward(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Wrap the forward and backward of a micro-batch; `last` is True for a step's last one."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Wait until gradients are summed over the workers."""

    def has_gradient(self, parameter: nn.Parameter) -> bool:
        """Whether a micro-batch of this step gave the parameter a gradient, on this worker."""
        return parameter.grad is not None

    def zero(self) -> None:
        """Reset the gradients."""
        self._model.zero_grad(set_to_none=True)


def distribute(
    model: nn.Module, group: Group, parallel: Parallel = "ddp", bfloat16: bool = False
) -> Exchange:
    """Put `model` on this worker's device with the leader's weights, sharded by `parallel`, which
    replaces the parameters: call it before building the optimizer. With `bfloat16`, sharded blocks
    are sent in it, which halves the traffic. Gradients are summed in float32."""
    _agree(model, group)
    if group.world_size == 1:
        model.to(group.device)
        return Exchange(model)
    if parallel == "ddp":
        model.to(group.device)
        return _Buckets(model)
    return _Shards(_shard(model, group, bfloat16))


@dataclass
class _Bucket:
    parameters: list[nn.Parameter]
    missing: int = 0

    def __post_init__(self) -> None:
        first, size = self.parameters[0], sum(each.numel() for each in self.parameters)
        self.flat = torch.zeros(size, dtype=first.dtype, device=first.device)
        begin = 0
        for parameter in self.parameters:
            # Backward accumulates in place, so the gradient stays a view of the bucket.
            parameter.grad = self.flat[begin : begin + parameter.numel()].view_as(parameter)
            begin += parameter.numel()


class _Buckets(Exchange):
    """Gradients as views of flat buckets, summed in bucket order, last layers first. They follow
    from the model alone: DistributedDataParallel reorders its buckets after the first backward of a
    process, so a resumed run of three or more workers would differ in the last bit."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._last = False
        self._next = 0
        self._sums: list[dist.Work] = []
        self._reached: set[nn.Parameter] = set()
        self._buckets = [_Bucket(parameters) for parameters in _portions(model)]
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(
                    lambda each, number=number: self._arrived(each, number)
                )

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        self._last = last
        if last:
            self._next = 0
            for bucket in self._buckets:
                bucket.missing = len(bucket.parameters)
        yield

    def finish(self) -> None:
        # Includes buckets held back by a parameter without a gradient.
        self._start(len(self._buckets))
        for work in self._sums:
            work.wait()
        self._sums.clear()

    def has_gradient(self, parameter: nn.Parameter) -> bool:
        return parameter in self._reached

    def zero(self) -> None:
        self._reached.clear()
        for bucket in self._buckets:
            bucket.flat.zero_()

    def _arrived(self, parameter: nn.Parameter, number: int) -> None:
        self._reached.add(parameter)
        if not self._last:
            return
        self._buckets[number].missing -= 1
        ready = self._next
        while ready < len(self._buckets) and self._buckets[ready].missing == 0:
            ready += 1
        self._start(ready)

    def _start(self, end: int) -> None:
        for bucket in self._buckets[self._next : end]:
            work = dist.all_reduce(bucket.flat, async_op=True)
            assert work is not None
            self._sums.append(work)
        self._next = max(self._next, end)


class _Shards(Exchange):
    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        self._model.set_requires_gradient_sync(last)  # pyright: ignore[reportCallIssue]
        yield


def _portions(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """The trainable parameters of the model in buckets of one dtype, last layers first."""
    portion: list[nn.Parameter] = []
    size = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        if portion and (size >= _BUCKET_BYTES or parameter.dtype != portion[0].dtype):
            yield portion
            portion, size = [], 0
        portion.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if portion:
        yield portion


def _shard(model: nn.Module, group: Group, bfloat16: bool) -> nn.Module:
    # These take a second to import, and most runs do not need them.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(group.device.type, (group.world_size,), mesh_dim_names=("shard",))
    policy = MixedPrecisionPolicy()
    if bfloat16:
        # The residual stream keeps its type from block to block.
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in [module for module in model.modules() if isinstance(module, Block)]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Otherwise the factor is left to an operation that only nccl has.
            module.set_force_sum_reduction_for_comms(True)
    return model


@torch.no_grad()
def _agree(model: nn.Module, group: Group) -> None:
    """Give every worker the leader's weights: the draw may differ in the last bits elsewhere."""
    if group.world_size == 1:
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        # One at a time, so that a model too large for one device can be sharded.
        on_device = tensor.detach().to(group.device)
        dist.broadcast(on_device, src=0)
        tensor.copy_(on_device)
