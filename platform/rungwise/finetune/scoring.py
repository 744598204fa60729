"""Items as batches, the outputs of a model, its loss, and the metrics of its task.

Shapes: R rows, B items, T sequence, W words.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rungwise.finetune.data import TaskData
from rungwise.finetune.model import TaskModel
from rungwise.models.device import multiplies_bfloat16
from rungwise.models.losses.cross_entropy import at_least_float32, token_sums
from rungwise.tasks.kinds.heads import Rows
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Outputs, TaskKind


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
    if model.config.bfloat16 and multiplies_bfloat16(model.device):
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
