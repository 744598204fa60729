"""AdamW, Muon, the learning rate of each step as a pure function, and averages of the weights."""

import contextlib
import inspect
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from rungwise.core.configuration.config import Config
from rungwise.models.transformer.block import StackedLinear
from rungwise.models.transformer.body import OnBody
from rungwise.training.state import is_sharded, local_rows, shard_like

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: steepest at 0, singular values in 0.7 .. 1.2
_ITERATIONS = 5
_EPSILON = 1e-7
_AT_ONCE = 1 << 25  # numbers: a sharded worker gathers whole matrices, which takes memory


def orthogonalise(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Approximate UVᵀ of each matrix USVᵀ in (N, rows, columns), by Newton-Schulz iterations."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = (x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPSILON)).to(dtype)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised and scaled to the size of AdamW's updates (Liu et al. 2025,
    arXiv:2502.16982), as `torch.optim.Muon` with `match_rms_adamw`, but a stack of matrices is
    orthogonalised apart, by the rows in `sizes`. `dtype` is that of the iteration. If `found_inf`
    is set to 1 before a step, all stays unchanged."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        sizes: Mapping[Tensor, tuple[int, ...]],
        lr: float,
        weight_decay: float,
        momentum: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(parameters, defaults)
        self._sizes = sizes
        self._dtype = dtype
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            waiting: dict[nn.Parameter, Tensor] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    share = group["momentum"]
                    waiting[parameter] = self._direction(parameter, parameter.grad, share)
                if sum(each.numel() for each in waiting.values()) >= _AT_ONCE:
                    self._move(waiting, group)
                    waiting = {}
            self._move(waiting, group)

    def _direction(self, parameter: nn.Parameter, gradient: Tensor, share: float) -> Tensor:
        """The Nesterov direction after this gradient, with the rows of all workers."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum, _ = local_rows(state["momentum_buffer"])
        own, _ = local_rows(gradient)
        if self.found_inf is not None:
            # The momentum replaces a non-finite gradient, and so stays unchanged.
            own = torch.where(self.found_inf > 0, momentum, own)
        momentum.lerp_(own, 1 - share)
        direction = own.lerp(momentum, share)
        if not is_sharded(parameter):
            return direction
        return shard_like(parameter, direction).full_tensor()

    def _move(self, directions: Mapping[nn.Parameter, Tensor], group: dict[str, Any]) -> None:
        parts = [
            part
            for parameter, direction in directions.items()
            for part in direction.split(self._sizes.get(parameter, (len(direction),)))
        ]
        alike: dict[torch.Size, list[int]] = {}
        for number, part in enumerate(parts):
            alike.setdefault(part.shape, []).append(number)
        for shape, numbers in alike.items():
            whole = torch.stack([parts[number] for number in numbers])
            steps = orthogonalise(whole, self._dtype) * (0.2 * math.sqrt(max(shape)))
            for number, step in zip(numbers, steps, strict=True):
                parts[number] = step
        rate: Any = group["lr"]
        if self.found_inf is not None:
            rate = rate * (1 - self.found_inf)
        rest = iter(parts)
        for parameter in directions:
            weight, start = local_rows(parameter)
            count = len(self._sizes.get(parameter, (0,)))
            step = torch.cat([next(rest) for _ in range(count)])[start : start + len(weight)]
            weight.mul_(1 - rate * group["weight_decay"]).sub_(step.to(weight.dtype) * rate)


_SHARE = "learning_rate_share"  # extra key of a parameter group
_SLANT = 32  # peak over ends of slanted triangles: Howard & Ruder 2018, arXiv:1801.06146, eq. 3


class ScheduleConfig(Config):
    """How the learning rate rises and falls. Fractions of the steps keep the shape in a longer run.

    The BERT paper warms up for 10,000 of 1,000,000 steps and decays linearly to 0. A number of
    steps of warm-up stays the same in a longer run, which can then continue from the plateau of a
    shorter one.
    """

    # shape after the warm-up; warmup_stable_decay: a plateau, then a linear decay; slanted: a line,
    # both it and the warm-up from and to 1/32 of the peak, whatever final_fraction
    kind: Literal["linear", "cosine", "warmup_stable_decay", "slanted"] = "linear"
    # share of the steps in which the rate rises to its peak
    warmup_fraction: float = Field(default=0.01, ge=0.0, lt=1.0)
    # share of the steps in the decay; for warmup_stable_decay only
    decay_fraction: float = Field(default=0.2, ge=0.0, le=1.0)
    final_fraction: float = Field(default=0.0, ge=0.0, le=1.0)  # final rate as a share of the peak
    # steps of warm-up; null: by warmup_fraction
    warmup_steps: int | None = Field(default=None, ge=0)

    def warmup(self, total_steps: int) -> int:
        """The first step at the peak."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return round(self.warmup_fraction * total_steps)

    def decay_from(self, total_steps: int) -> int:
        """The last step at the peak, from which the rate goes down; `total_steps` if it stays."""
        warmup = self.warmup(total_steps)
        if self.kind != "warmup_stable_decay":
            return warmup
        return max(warmup, total_steps - round(self.decay_fraction * total_steps))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.warmup_steps is not None:
            return self  # replaces its fraction
        if self.kind == "warmup_stable_decay" and self.warmup_fraction + self.decay_fraction > 1:
            raise ValueError(
                f"warmup_fraction {self.warmup_fraction} and decay_fraction {self.decay_fraction} "
                "are more than 1 together; lower one"
            )
        return self


class _SharedConfig(Config):
    learning_rate: float = Field(default=1e-4, gt=0.0)  # the peak
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta2: float = Field(default=0.999, ge=0.0, lt=1.0)
    epsilon: float = Field(default=1e-6, gt=0.0)
    weight_decay: float = Field(default=0.01, ge=0.0)
    # largest norm of the gradient; null: no clipping
    clip_norm: float | None = Field(default=1.0, gt=0.0)
    schedule: ScheduleConfig = ScheduleConfig()


class OptimizerConfig(_SharedConfig):
    """AdamW with a schedule."""

    # The defaults are BERT's (Devlin et al. 2019, appendix A.2), but Adam's bias correction is
    # kept: without it the first updates are too large (Zhang et al. 2021, arXiv:2006.05987).

    kind: Literal["adamw"] = "adamw"
    # rate of a layer over that of the one above; heads have the highest layer's (Howard & Ruder
    # 2018: 1 / 2.6 for a language model that goes on with the text of a task)
    layer_decay: float = Field(default=1.0, gt=0.0, le=1.0)


class MuonConfig(_SharedConfig):
    """Muon for the matrices of the layers, AdamW with the betas and epsilon for the rest."""

    kind: Literal["muon"] = "muon"
    momentum: float = Field(default=0.95, ge=0.0, lt=1.0)  # of Muon


AnyOptimizerConfig = Annotated[OptimizerConfig | MuonConfig, Field(discriminator="kind")]
Optimizers = Sequence[torch.optim.Optimizer]


def build_optimizers(
    model: nn.Module, config: AnyOptimizerConfig, bfloat16: bool = False
) -> Optimizers:
    """The optimizers, each of its own trainable parameters: Muon of the matrices of layers, with
    products in `bfloat16` if the model's are, AdamW of embeddings, heads, norms and biases."""
    if isinstance(config, OptimizerConfig):
        bodies = [module.body for module in model.modules() if isinstance(module, OnBody)]
        depths = {
            id(parameter): len(levels) - 1 - number
            for levels in (body.levels() for body in bodies)
            for number, level in enumerate(levels)
            for part in level
            for parameter in part.parameters()
        }
        shares = {
            name: config.layer_decay ** depths.get(id(value), 0)
            for name, value in model.named_parameters()
        }
        return (build_optimizer(model, config, shares),)
    hidden = hidden_matrices(model)
    adamw = build_optimizer(model, config, without=hidden)
    if not hidden:  # a family without a body of layers
        return (adamw,)
    stacked = {m.weight: m.sizes for m in model.modules() if isinstance(m, StackedLinear)}
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    settings = (config.learning_rate, config.weight_decay, config.momentum, dtype)
    return (Muon(list(hidden.values()), stacked, *settings), adamw)


class _AdamW(torch.optim.AdamW):
    """Without the wrappers for whoever compiles it, which import PyTorch's compiler: two seconds of
    each process."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def build_optimizer(
    model: nn.Module,
    config: AnyOptimizerConfig,
    shares: Mapping[str, float] = MappingProxyType({}),
    without: Container[str] = (),
) -> torch.optim.AdamW:
    """Fused AdamW over the trainable parameters but those named in `without`, in two groups, with
    and without decay. `shares` maps names of parameters to a share of the learning rate, 1 by
    default; there are two groups for each share."""
    decayed, undecayed = (
        {name: value for name, value in group.items() if name not in without}
        for group in decay_groups(model)
    )
    groups = [
        {
            "params": [value for name, value in group.items() if shares.get(name, 1.0) == share],
            "weight_decay": decay,
            _SHARE: share,
        }
        for share in dict.fromkeys(shares.get(name, 1.0) for name in [*decayed, *undecayed])
        for group, decay in ((decayed, config.weight_decay), (undecayed, 0.0))
    ]
    rate, betas = config.learning_rate, (config.beta1, config.beta2)
    return _AdamW(groups, lr=rate, betas=betas, eps=config.epsilon, fused=True)


def decay_groups(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Trainable parameters by name: those with weight decay, those without. Biases and all norms
    have none, as in `exclude_from_weight_decay` of google-research/bert."""
    decayed: dict[str, nn.Parameter] = {}
    undecayed: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        owner, _, leaf = name.rpartition(".")
        is_norm = isinstance(model.get_submodule(owner), nn.LayerNorm | nn.RMSNorm)
        (undecayed if is_norm or "bias" in leaf else decayed)[name] = parameter
    return decayed, undecayed


def hidden_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable matrices of the layers above the embeddings, without heads, by name."""
    inside = {
        id(parameter)
        for on_body in model.modules()
        if isinstance(on_body, OnBody)
        for layer in on_body.body.levels()[1:]
        for part in layer
        for parameter in part.parameters()
        if parameter.ndim == 2 and parameter.requires_grad
    }
    return {name: value for name, value in model.named_parameters() if id(value) in inside}


def compute_learning_rate(step: float, total_steps: int, config: AnyOptimizerConfig) -> float:
    """The learning rate of update number `step`, counted from 0, of `total_steps`. In a warm-up of
    W steps, step s has the share (s+1)/(W+1) of the peak (google-research/bert and transformers use
    s/W, which wastes the first batch). From W on the schedule is that of transformers. `step` may
    be fractional: under a budget of tokens or seconds it is the share spent, in steps."""
    schedule = config.schedule
    warmup_steps, begin = schedule.warmup(total_steps), schedule.decay_from(total_steps)
    if schedule.kind == "slanted":
        rising = step / max(1, warmup_steps)
        falling = 1 - (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return config.learning_rate * (1 + (_SLANT - 1) * max(0.0, min(rising, falling))) / _SLANT
    if step < warmup_steps:
        return config.learning_rate * (step + 1) / (warmup_steps + 1)
    progress = min(1.0, max(0.0, step - begin) / max(1, total_steps - begin))
    match schedule.kind:
        case "linear" | "warmup_stable_decay":
            remaining = 1.0 - progress
        case "cosine":
            remaining = 0.5 * (1.0 + math.cos(math.pi * progress))
    fraction = schedule.final_fraction + (1.0 - schedule.final_fraction) * remaining
    return config.learning_rate * fraction


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every group to its share of `learning_rate`."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get(_SHARE, 1.0)


def clip_gradients(model: nn.Module, config: AnyOptimizerConfig) -> Tensor:
    """Scale all gradients to a joint norm of at most `clip_norm`; returns the norm before that. The
    norm stays on the device: reading it waits. Call this when the gradients of all micro-batches
    and workers are summed. For sharded parameters it is the norm of all shards."""
    bound = math.inf if config.clip_norm is None else config.clip_norm
    norm = nn.utils.clip_grad_norm_(model.parameters(), bound)
    # Only a DTensor has this method; importing the class to check takes a second.
    whole = getattr(norm, "full_tensor", None)
    return norm if whole is None else whole()


def update(optimizers: Optimizers, finite: Tensor, learning_rate: float) -> None:
    """Step each optimizer, or none if `finite` () is False, which is read on the device."""
    for optimizer in optimizers:
        set_learning_rate(optimizer, learning_rate)
        # Set as torch.amp.GradScaler does for AdamW; `step` has no such argument.
        optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.found_inf = (~finite).float()  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()


AVERAGE = "average/"  # before the name of a parameter, in checkpoints


class AverageConfig(Config):
    """The plain mean of the weights over the last steps."""

    steps: int = Field(ge=1)  # number of these steps


class WeightAverage:
    """The mean of the parameters of one model over the last steps (Izmailov et al. 2018,
    arXiv:1803.05407), sharded as they are. The share of a step follows from its number."""

    def __init__(self, model: nn.Module, config: AverageConfig, total_steps: int) -> None:
        self._model = model
        self._first = total_steps - config.steps
        copies = {id(each): each.detach().clone() for each in model.parameters()}
        # Both names of a parameter that is used twice, as in the model's state dict.
        names = model.named_parameters(remove_duplicate=False)
        # By their names in checkpoints; sharded ones are DTensors.
        self.tensors = {f"{AVERAGE}{name}": copies[id(each)] for name, each in names}

    def update(self, step: int) -> None:
        """Include the weights after update number `step`, counted from 1."""
        share = self._share(step)
        if share > 0:
            average, weights = self._pairs()
            get_ema_multi_avg_fn(1.0 - share)(average, weights, 0)

    @contextlib.contextmanager
    def swap_averages(self, step: int) -> Iterator[None]:
        """Swap the averages into the model inside the block, if they have begun by `step`."""
        if self._share(step) == 0:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _share(self, step: int) -> float:
        """The share of the weights after `step` in the average at that time."""
        count = step - self._first
        return 1.0 / count if count > 0 else 0.0

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """The local rows of the averages, and of the weights in the same order."""
        names = [name for name, _ in self._model.named_parameters()]
        averages = [local_rows(self.tensors[f"{AVERAGE}{name}"])[0] for name in names]
        return averages, [local_rows(each)[0] for each in self._model.parameters()]

    @torch.no_grad()
    def _swap(self) -> None:
        # FSDP2 may still hold whole weights that it gathered before.
        if reshard := getattr(self._model, "reshard", None):
            reshard()
        for average, weights in zip(*self._pairs(), strict=True):
            copy = weights.clone()
            weights.copy_(average)
            average.copy_(copy)
