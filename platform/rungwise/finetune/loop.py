"""Fine-tune one model on one task with one seed, and score it: items as batches, the outputs of the
model, its loss, and the metrics of its task.

Training is that of BERT (Devlin et al. 2019, arXiv:1810.04805, section 4.1): AdamW, linear warm-up
and decay, one process with one device. The same seed gives the same bits: order and dropout depend
on seed, epoch and step, so a saved state has no generator.

Shapes: R rows, B items, T sequence, W words."""

import functools
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rungwise.core.errors import UserError
from rungwise.core.randomness import bits
from rungwise.finetune.config import DiscriminativeAdaptation, FinetuneConfig
from rungwise.finetune.data import TaskData, check
from rungwise.finetune.model import TaskModel
from rungwise.models import device as devices
from rungwise.models.losses.cross_entropy import at_least_float32, token_sums
from rungwise.tasks.kinds.heads import CrfHead, Rows
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Outputs, TaskKind
from rungwise.training import optimizer as optimizers


@dataclass(frozen=True)
class ItemBatch:
    """The rows of one forward pass, and their targets."""

    ids: Tensor  # (R, T) int64
    segments: Tensor  # (R, T) int64
    rows: Rows
    # (B,); multilabel (B, C), tagging and generation (W,), spans (B, 2). None if any is unknown.
    targets: Tensor | None

    def to(self, device: torch.device) -> Self:
        targets = None if self.targets is None else self.targets.to(device)
        ids, segments = self.ids.to(device), self.segments.to(device)
        return type(self)(ids, segments, self.rows.to(device), targets)


def collate(items: Sequence[Item], kind: TaskKind | type[TaskKind]) -> ItemBatch:
    """Make one batch of items; lengths are None if no row is padded."""
    rows = [row for item in items for row in item.rows]
    lengths = [len(row.ids) for row in rows]
    ids_RT = pad_sequence([_integers(row.ids) for row in rows], batch_first=True)
    segments_RT = pad_sequence([_integers(row.segments) for row in rows], batch_first=True)
    word_row, word_place, targets = None, None, None
    item = _integers(n for n, item in enumerate(items) for _ in item.rows)
    values: list[Any] = [item.target for item in items]
    if None not in values:
        if kind.target_per_place:
            values = [tag for tags in values for tag in tags]
        dtype = torch.float32 if kind.real_targets else torch.int64
        targets = torch.tensor(values, dtype=dtype)
    if kind.target_per_place:
        word_row = _integers(n for n, item in enumerate(items) for _ in item.places)
        word_place = _integers(place for item in items for place in item.places)
    lengths_R = torch.tensor(lengths) if min(lengths) < max(lengths) else None
    framed = Rows(lengths_R, item, len(items), word_row, word_place)
    return ItemBatch(ids_RT, segments_RT, framed, targets)


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


_ROWS_AT_A_TIME = 64
Output = NDArray[Any]


@dataclass(frozen=True)
class Scores:
    """Scores of one split. `predictions` and `probabilities` have one entry per example, in order;
    a probability is None for a kind without them."""

    loss: float
    metrics: dict[str, float]
    predictions: list[dict[str, Any]]
    probabilities: list[Any]


def outputs(model: TaskModel, items: Sequence[Item]) -> list[Output]:
    """Return the output of each item, in order (tasks/kinds/kind.py has their shapes)."""
    return _answers(model, items)[0]


def evaluate(model: TaskModel, data: TaskData, split: str, *, calibrate: bool = False) -> Scores:
    """Return loss, metrics and predictions of a split, with the model's calibration, or with the
    one that is fitted on this split first."""
    part, kind = data.splits[split], model.kind
    arrays, loss = _answers(model, part.items)
    outputs = Outputs(arrays, part.items, part.examples, data.tokenizer)
    if calibrate:
        model.calibration = kind.calibrate(outputs)
    predictions = kind.decode(outputs, model.calibration)
    metrics = kind.score(predictions, part.examples)
    return Scores(loss, metrics, predictions, kind.probabilities(outputs))


@torch.no_grad()
def _answers(model: TaskModel, items: Sequence[Item]) -> tuple[list[Output], float]:
    """Return the outputs of the items and their mean loss, NaN if any target is unknown."""
    model.eval()
    kind = model.kind
    outputs: list[Output | None] = [None] * len(items)
    total, count = 0.0, 0

    def compute(items: Sequence[Item]) -> Tensor:
        return logits_and_states(model, collate(items, kind).to(model.device))[0]

    for places in _by_length(items):
        chunk = [items[place] for place in places]
        batch = collate(chunk, kind).to(model.device)
        logits, _ = logits_and_states(model, batch)
        answers = kind.read_logits(logits.cpu(), chunk, compute)
        for place, output in zip(places, answers, strict=True):
            outputs[place] = output
        if batch.targets is None:
            total = math.nan
        else:
            batch_total, batch_count = kind.loss_sums(logits, batch.targets)
            total, count = total + batch_total.item(), count + batch_count
    return [output for output in outputs if output is not None], total / max(count, 1)


def _by_length(items: Sequence[Item]) -> Iterator[list[int]]:
    lengths = [max(len(row.ids) for row in item.rows) for item in items]
    chunk: list[int] = []
    rows = 0
    for place in sorted(range(len(items)), key=lambda place: lengths[place]):
        if chunk and rows + len(items[place].rows) > _ROWS_AT_A_TIME:
            yield chunk
            chunk, rows = [], 0
        chunk.append(place)
        rows += len(items[place].rows)
    if chunk:
        yield chunk


def logits_and_states(model: TaskModel, batch: ItemBatch) -> tuple[Tensor, Tensor]:
    """Return the logits of a batch, in float32, and the states (R, T, E) of the encoder, on the
    device of the model."""
    with precision(model):
        states_RTE = model.states(batch.ids, batch.segments, batch.rows.lengths)
        logits = model.read(batch.ids, states_RTE, batch.rows)
    return at_least_float32(logits), states_RTE


def precision(model: TaskModel) -> AbstractContextManager[object]:
    """Return the autocast context of the model: bfloat16 if configured and native to its device."""
    if model.config.bfloat16 and devices.multiplies_bfloat16(model.device):
        return torch.autocast(model.device.type, torch.bfloat16)
    return nullcontext()


def language_model_loss(model: TaskModel, batch: ItemBatch, states_RTE: Tensor) -> Tensor:
    """Return the sum over rows of the mean cross entropy of all tokens but the first, each
    predicted by the token embeddings from the state before it."""
    R, T = batch.ids.shape
    lengths_R = batch.rows.lengths
    if lengths_R is None:
        lengths_R = torch.full((R,), T, device=batch.ids.device)
    place_T = torch.arange(1, T, device=batch.ids.device)
    table_VE = model.encoder.word_table()
    real_RT = (place_T < lengths_R[:, None]).to(table_VE.dtype)
    weights_RT = real_RT / (lengths_R[:, None] - 1)
    with precision(model):
        return token_sums(
            states_RTE[:, :-1].flatten(0, 1),  # (R, T, E) -> (R·(T - 1), E)
            table_VE,
            None,
            batch.ids[:, 1:].flatten(),
            weights_RT.flatten(),
        ).total


def class_weights(
    kind: TaskKind | type[TaskKind], targets: Sequence[Any], num_classes: int
) -> Tensor:
    """Return N / (K · N_c) for each class (C,), of N targets in the K classes that occur:
    scikit-learn's `balanced` (King & Zeng 2001, "Logistic regression in rare events data"). 1 for a
    class without targets. Each label of multilabel is two classes, absent and present: (2, C)."""
    counts = kind.count_classes(torch.tensor(targets), num_classes)
    weights = counts.sum(dim=0) / (counts.count_nonzero(dim=0) * counts)
    return torch.where(counts > 0, weights, 1.0)


def learning_rate_shares(model: TaskModel, config: FinetuneConfig) -> dict[str, float]:
    """Return the factor on `learning_rate` of each parameter, by name. Of L layers, layer l has
    decay^(L - l); the embeddings are layer 0."""
    adaptation = config.adaptation
    decay = adaptation.decay if isinstance(adaptation, DiscriminativeAdaptation) else 1.0
    of_head = (config.head_learning_rate or config.learning_rate) / config.learning_rate
    levels = model.encoder.depth()
    shares: dict[int, float] = {}
    for number, level in enumerate(levels):
        shares |= dict.fromkeys(map(id, level), decay ** (len(levels) - 1 - number))
    return {name: shares.get(id(value), of_head) for name, value in model.named_parameters()}


def thaw(model: TaskModel, config: FinetuneConfig, epoch: int) -> None:
    """Unfreeze the layers whose turn has come in `epoch`, counted from 0, and freeze the others."""
    every = config.unfreeze_every_epochs
    if every is None:
        return
    levels = model.encoder.depth()
    waiting = max(0, len(levels) - epoch // every)
    for number, level in enumerate(levels):
        for parameter in level:
            parameter.requires_grad_(number >= waiting)


@dataclass(frozen=True)
class Best:
    """The best epoch so far, counted from 1: its score and loss on validation, its weights."""

    epoch: int
    score: float
    loss: float
    weights: Mapping[str, Tensor]


def save_state(
    model: TaskModel, optimizer: torch.optim.Optimizer, epoch: int, best: Best | None = None
) -> bytes:
    """Return everything needed to resume after `epoch` epochs. The optimizer's moments are by name,
    because its groups depend on settings that may change."""
    moments = {
        name: optimizer.state[parameter]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": moments}
    file = io.BytesIO()
    torch.save(state | {"best": None if best is None else vars(best)}, file)
    return file.getvalue()


@torch.no_grad()
def load_state(
    model: TaskModel, optimizer: torch.optim.Optimizer, state: bytes
) -> tuple[int, Best | None]:
    """Load `state`. Returns the number of epochs done, and the best epoch if there is one. Raises
    UserError for the state of another model."""
    try:
        saved = torch.load(io.BytesIO(state), map_location=model.device, weights_only=True)
        model.load_state_dict(saved["model"])
    except (RuntimeError, KeyError, EOFError, UnpicklingError) as error:
        raise UserError(
            "the saved state is of another model; what goes on from a state must keep "
            "finetune.top, finetune.adaptation and the encoder"
        ) from error
    parameters = dict(model.named_parameters())
    for name, moments in saved["optimizer"].items():
        optimizer.state[parameters[name]] = moments
    return saved["epoch"], None if saved["best"] is None else Best(**saved["best"])


_DROPOUT, _BATCHES = 0xD209, 0xBA7C  # apart from the random numbers of the order of items
_POOL_BATCHES = 32


class OnEpoch(Protocol):
    """Called after each epoch, counted from 1, with the metrics of `finetune`. `state()` makes the
    bytes to resume from, at no cost unless called; None if the training has no state."""

    def __call__(
        self, epoch: int, metrics: dict[str, float], state: Callable[[], bytes] | None = None, /
    ) -> None: ...


def finetune(
    config: FinetuneConfig,
    data: TaskData,
    seed: int,
    on_epoch: OnEpoch | None = None,
    start: bytes | None = None,
) -> TaskModel:
    """Train a model on the training split, and calibrate it on the validation split. The validation
    split is scored after the last epoch, and after every epoch for `best_epoch` and `on_epoch`.
    `on_epoch` then gets `loss` and the metrics, and with `best_epoch` `kept/epoch`, `kept/score`
    and `kept/loss` of the best weights so far. `start` is a state to resume from, with the same
    result as without the interruption. Raises ConfigError for impossible settings, UserError for a
    loss that is not finite."""
    check(config, data.info, data.pretrained.family, data.pretrained.objective)
    devices.keep_freed_memory()
    torch.manual_seed(seed)
    # Draw the weights on the CPU, so that they depend on the seed and not on the device.
    model = build(config, data).to(devices.list_devices()[0])
    schedule = optimizers.ScheduleConfig(
        kind=config.schedule, warmup_fraction=config.warmup_fraction
    )
    settings = optimizers.OptimizerConfig(
        learning_rate=config.learning_rate, weight_decay=config.weight_decay, schedule=schedule
    )
    shares = learning_rate_shares(model, config)
    optimizer = optimizers.build_optimizer(model, settings, shares)
    items = data.splits["train"].items
    steps_per_epoch = -(-len(items) // config.batch_size)
    total_steps = steps_per_epoch * config.epochs
    steps = range(total_steps)
    rates = [optimizers.compute_learning_rate(step, total_steps, settings) for step in steps]
    first_epoch, best = (0, None) if start is None else load_state(model, optimizer, start)
    weights = None
    if config.class_weights:
        targets = [item.target for item in items]
        weights = class_weights(model.kind, targets, len(data.info.labels))
        weights = weights.to(model.device)
    for epoch in range(first_epoch, config.epochs):
        model.train()
        thaw(model, config, epoch)
        for number, indices in enumerate(make_batches(items, config.batch_size, seed, epoch)):
            step = epoch * steps_per_epoch + number
            parts = np.array_split(indices, min(config.accumulation, len(indices)))
            chunks = ([items[index] for index in part] for part in parts)
            batches = [collate(each, model.kind).to(model.device) for each in chunks]
            # Make dropout depend on the step, not on earlier draws.
            devices.seed_generators(int(bits(seed, step, _DROPOUT)) >> 1, [model.device])
            optimizers.set_learning_rate(optimizer, rates[step])
            loss = add_gradients(model, batches, weights)
            if not math.isfinite(loss):
                raise UserError(
                    f"the loss of step {step + 1} of {total_steps} is {loss}; lower "
                    f"finetune.learning_rate, now {config.learning_rate:g}"
                )
            optimizers.clip_gradients(model, settings)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if on_epoch is None and not config.best_epoch and epoch + 1 < config.epochs:
            continue
        scores = evaluate(model, data, "validation", calibrate=True)
        metrics = {"loss": scores.loss, **scores.metrics}
        if config.best_epoch:
            score = scores.metrics[data.info.metric]
            if best is None or not (best.score, -best.loss) >= (score, -scores.loss):
                copy = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                best = Best(epoch + 1, score, scores.loss, copy)
            metrics |= {f"kept/{name}": getattr(best, name) for name in ("epoch", "score", "loss")}
        if on_epoch is not None:
            state = functools.partial(save_state, model, optimizer, epoch + 1, best)
            on_epoch(epoch + 1, metrics, state)
    if best is not None:
        model.load_state_dict(best.weights)
    if best is not None or first_epoch >= config.epochs:
        evaluate(model, data, "validation", calibrate=True)
    return model.eval()


def add_gradients(
    model: TaskModel, parts: Sequence[ItemBatch], weights: Tensor | None = None
) -> float:
    """Add the gradient of the mean loss of a batch, which comes in parts, and return that loss. An
    auxiliary language model adds its mean loss over the rows, times its weight."""
    count = sum(len(part.targets) for part in parts if part.targets is not None)
    rows = sum(len(part.ids) for part in parts)
    share = model.config.auxiliary_language_model
    mean = 0.0
    for part in parts:
        assert part.targets is not None, "a training split has targets"
        logits, states_RTE = logits_and_states(model, part)
        if isinstance(model.head, CrfHead):
            total = model.head.loss(logits, part.rows, part.targets)
        else:
            total, _ = model.kind.loss_sums(logits, part.targets, weights)
        loss = total / count
        if share:
            loss = loss + share * language_model_loss(model, part, states_RTE) / rows
        loss.backward()
        mean += loss.item()
    return mean


def make_batches(
    items: Sequence[Item], batch_size: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Return the items of each batch of an epoch: each once, those of a batch of similar length.
    Batches are padded to their longest row, and of a random batch of sentences half is padding. So
    items are shuffled, sorted by length within pools of `_POOL_BATCHES` batches, and full batches
    shuffled again; the rest comes last. The result depends on the seed and the epoch only."""
    order = np.argsort(bits(seed, epoch, np.arange(len(items))))
    lengths = np.array([max(len(row.ids) for row in items[index].rows) for index in order])
    pools = np.arange(len(order)) // (_POOL_BATCHES * batch_size)
    order = order[np.lexsort((lengths, pools))]
    full = len(order) // batch_size
    batches = [order[n * batch_size : (n + 1) * batch_size] for n in range(full)]
    shuffled = [batches[n] for n in np.argsort(bits(seed, epoch, _BATCHES, np.arange(full)))]
    rest = order[full * batch_size :]
    return [*shuffled, rest] if len(rest) else shuffled


def build(config: FinetuneConfig, data: TaskData) -> TaskModel:
    """Build the model before training; its random parts use PyTorch's generator."""
    model = TaskModel(config, data.info, data.pretrained)
    if config.initialisation == "pretrained":
        model.load_pretrained(data.weights)
    else:
        model.encoder.load_spelling(data.weights)
    return model
