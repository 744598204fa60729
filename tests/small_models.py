"""Small Transformers and random batches for them: one of each objective, and of each later family
one under its own name.

Shapes: B batch, T sequence, V vocabulary, M masked positions.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.instances.kind import Kind
from rungwise.instances.summary import InstancesConfig
from rungwise.models.families.bert import BertConfig, ModernBertConfig
from rungwise.models.families.elmo import BidirectionalConfig
from rungwise.models.families.gpt import GptConfig, LlamaConfig
from rungwise.models.family import Family
from rungwise.models.losses.objectives import LossSum, Objective
from rungwise.models.transformer.body import boundaries

# The kinds of instances by name.
INSTANCES: dict[str, type[Kind]] = {
    kind.model_fields["kind"].default: kind
    for kind in typing.get_args(typing.get_args(InstancesConfig)[0])
}
VOCAB_SIZE = 50
LENGTH = 16
CAUSAL_KINDS: tuple[str, ...] = (
    *("causal", "left_to_right", "bidirectional", "llama", "modern_left_to_right"),
)
KINDS: tuple[str, ...] = ("mlm_nsp", "mlm", "sentence_order", "modern_bert", *CAUSAL_KINDS)
# Later families, with keys under which everything that is theirs is at work, and the objective if
# it is not their first.
LATER: dict[str, tuple[type[Family], dict[str, Any], str | None]] = {
    "modern_bert": (ModernBertConfig, {"local_window": 6}, None),
    "modern_left_to_right": (ModernBertConfig, {"local_window": 6}, "left_to_right"),
    **{
        name: (ModernBertConfig, {"local_window": 6}, name)
        for name in ("replaced_tokens", "causal_and_masked", "span_denoising")
    },
    "llama": (LlamaConfig, {"num_key_value_heads": 1, "query_key_norm": True}, None),
}


def small_config(kind: str, **changes: Any) -> Family:
    """A config of the family that the objective trains, or of a later family."""
    families = {"causal": GptConfig, "bidirectional": BidirectionalConfig}
    family, own, _ = LATER.get(kind, (families.get(kind, BertConfig), {}, None))
    values: dict[str, Any] = {
        "num_layers": 2,
        "num_heads": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
        "max_position_embeddings": LENGTH,
    }
    return family(**(values | own | changes))


def small_model(kind: str, vocab_size: int = VOCAB_SIZE, **changes: Any) -> Any:
    """A model for the objective, its weights as at the start."""
    return small_config(kind, **changes).build(vocab_size, objective_of(kind))


def objective_of(kind: str) -> Objective:
    """The objective of that name, or of a later family."""
    return small_config(kind).objective(LATER[kind][2] if kind in LATER else kind)


def shaken(model: nn.Module, scale: float = 0.3) -> Any:
    """Weights large enough for every path to matter; at 0.02 the layers add little."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


def random_batch(
    kind: str,
    B: int,
    T: int,
    M: int = 4,
    vocab_size: int = VOCAB_SIZE,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Ragged rows of whatever the objective reads; packed ones where it reads blocks."""
    if objective_of(kind).masks:
        return random_masked_batch(B, T, M, vocab_size, dtype=dtype)
    return random_causal_batch(B, T, vocab_size, dtype=dtype)


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """The micro-batch of rows [start, stop), without `starts`, which count from the first row."""
    fields = {name: value for name, value in vars(batch).items() if value is not None}
    rows = {name: value[start:stop] for name, value in fields.items()}
    return dataclasses.replace(batch, **rows | {"starts": None})


def random_masked_batch(
    B: int,
    T: int,
    M: int,
    vocab_size: int = VOCAB_SIZE,
    padded: bool = True,
    dtype: torch.dtype = torch.float32,
) -> MaskedBatch[Tensor]:
    """Ragged rows with ragged counts of masked positions; the first row has none."""
    lengths = torch.randint(2, T + 1, (B,)) if padded else torch.full((B,), T)
    order = torch.rand(B, T).masked_fill(torch.arange(T) >= lengths[:, None], 2.0)
    order[:, 0] = 2.0  # [CLS] is never masked
    positions = order.argsort(dim=1)[:, :M]
    counts = torch.minimum(torch.randint(0, M + 1, (B,)), lengths - 1)
    counts[0] = 0
    weights = (torch.arange(M) < counts[:, None]).to(dtype)
    return MaskedBatch(
        ids=torch.randint(vocab_size, (B, T)),
        segments=torch.randint(2, (B, T)),
        lengths=lengths if padded else None,
        masked_positions=positions * weights.long(),
        masked_ids=torch.randint(vocab_size, (B, M)) * weights.long(),
        masked_weights=weights,
        label=torch.randint(2, (B,)),
    )


def random_causal_batch(
    B: int,
    T: int,
    vocab_size: int = VOCAB_SIZE,
    packed: bool = True,
    padded: bool = True,
    dtype: torch.dtype = torch.float32,
) -> CausalBatch[Tensor]:
    """Blocks of a random stream, with boundaries anywhere, and padding behind the shorter rows."""
    stream = torch.randint(vocab_size, (B, T + 1))
    lengths = torch.randint(1, T + 1, (B, 1)) if padded else torch.full((B, 1), T)
    place = torch.arange(T).expand(B, T)
    opens = torch.rand(B, T) < 0.3
    begin = torch.where(opens, place, 0).cummax(dim=1).values
    return CausalBatch(
        ids=stream[:, :-1],
        targets=stream[:, 1:],
        weights=(place < lengths).to(dtype),
        document=opens.long().cumsum(dim=1) if packed else None,
        positions=place - begin if packed else None,
    )


def documents_of(batch: CausalBatch) -> Iterator[tuple[int, slice, CausalBatch[Tensor]]]:
    """Row, columns, and the batch of it alone, for each document of real tokens."""
    assert batch.document is not None
    for row in range(len(batch.ids)):
        length = int(batch.weights[row].sum())
        numbers = batch.document[row, :length]
        for number in numbers.unique().tolist():
            columns = (numbers == number).nonzero().flatten()
            piece = slice(int(columns[0]), int(columns[-1]) + 1)
            alone = {name: getattr(batch, name)[[row], piece] for name in ("ids", "targets")}
            weights = batch.weights[[row], piece]
            yield row, piece, CausalBatch(**alone, weights=weights, document=None, positions=None)


def lengths_of(batch: CausalBatch) -> Tensor:
    """How many real targets each row has."""
    return batch.weights.sum(dim=1).long()


def logits_of(model: Any, batch: CausalBatch) -> Tensor:
    """Logits (B, T, V) of the targets, whatever the model."""
    where = boundaries(batch)
    if hasattr(model, "bidirectional"):
        return model.logits(batch.ids, batch.targets, lengths_of(batch), where)
    return model.logits(batch.ids, where)


def check_slopes(
    model: nn.Module,
    loss: Callable[[], float],
    epsilon: float = 1e-6,
    least: float = 1e-8,
    rel: float = 1e-5,
) -> None:
    """Compare gradients with differences of the loss, along a random direction of each."""
    for name, parameter in model.named_parameters():
        direction, values = torch.randn_like(parameter), []
        for sign in (1, -2):
            parameter.data.add_(sign * epsilon * direction)
            values.append(loss())
        parameter.data.add_(epsilon * direction)
        slope = (values[0] - values[1]) / (2 * epsilon)
        assert parameter.grad is not None, name
        along = (parameter.grad * direction).sum().item()
        assert along == pytest.approx(slope, rel=rel, abs=least), name


def loss_and_gradient(objective: Objective, model: nn.Module, rows: Any) -> tuple[LossSum, Tensor]:
    """The sums of an objective and the gradient of its loss; the model's own is left empty."""
    sums = objective(model, rows)
    sums.loss().backward()
    slope = gradient(model)
    model.zero_grad()
    return sums, slope


def gradient(model: nn.Module) -> Tensor:
    """All gradients in one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def sum_probabilities(model: Any, vocab_size: int) -> float:
    """The sum of the probabilities of all texts of two words, which is 1 of a language model."""
    every = [[first, second] for first in range(vocab_size) for second in range(vocab_size)]
    return math.fsum(math.exp(row.sum()) for row in model.log_probabilities(every))


def watch_logits(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of positions whose logits a model computes at a time, from now on."""
    held: list[int] = []
    to_logits = model.to_logits
    monkeypatch.setattr(
        model,
        "to_logits",
        lambda states: held.append(states.shape[:2].numel()) or to_logits(states),
    )
    return held
