"""What the step benchmark trains: shapes and made-up batches. NumPy, PyTorch and our configs alone.

Ids are drawn evenly from the vocabulary: a step costs the same whatever they are. Rows are full,
but where texts have log-normal lengths with a median of 96 tokens: ragged ones are cut at 256, and
45 % of a batch that is padded to 256 would be padding; packed ones fill rows of 512 one behind the
other, the last of a row cut where it ends. 15 % of the real tokens are masked.

Shapes: B batch, T sequence, M masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rungwise.models.families.bert import BertConfig, EncoderFamily, ModernBertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.losses.objectives import Objective

WORDPIECE, BYTE_BPE, MODERN_BERT = 30_522, 50_257, 50_368
_MASKED = 0.15
_MEDIAN, _SPREAD, _SHORTEST = 96, 0.7, 8


@dataclass(frozen=True)
class Case:
    """One training step; `micro_batches` of `rows` rows make it."""

    name: str
    model: BertConfig | GptConfig | ModernBertConfig
    vocab_size: int
    sequence_length: int
    rows: int
    masked_positions: int = 0  # fixed width of the masked head; 0 in a GPT
    ragged: bool = False
    packed: bool = False  # texts that fill whole rows; the peers get each in a row of its own
    micro_batches: int = 1

    @property
    def is_bert(self) -> bool:
        """Whether it fills in masked tokens, as ModernBERT does too."""
        return isinstance(self.model, EncoderFamily)

    @property
    def objective(self) -> Objective:
        """Packed texts have no pairs of sentences."""
        return self.model.objective("mlm" if self.packed else None)

    @property
    def shape(self) -> dict[str, int]:
        """What any library needs to build the same model."""
        names = (
            "num_layers",
            "num_heads",
            "hidden_size",
            "intermediate_size",
            "max_position_embeddings",
        )
        return {name: getattr(self.model, name) for name in names}


@dataclass(frozen=True)
class Rows:
    """Instances as arrays, padded to T; of a GPT only `ids` (B, T + 1) and `lengths` count."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    segments: NDArray[np.int64]
    positions: NDArray[np.int64]  # (B, M), masked ones, filled up with 0
    weights: NDArray[np.float32]  # (B, M), 1 where it is one
    targets: NDArray[np.int64]  # (B, M)
    label: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Real ones."""
        return int(self.lengths.sum())

    @property
    def seen(self) -> float:
        """How many tokens a token's text has, itself included, on average over tokens."""
        return float((self.lengths**2).sum() / self.lengths.sum())

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """These rows, cut to the longest of them and to the most masked positions, rounded up to
        eights where rows are ragged."""
        longest, width = int(self.lengths[rows].max()), self.segments.shape[1]
        further = self.ids.shape[1] - width  # a GPT's rows have one id more than places
        if longest < width:
            width = min(-(-longest // 8) * 8, width)
        return Rows(
            self.ids[rows, : width + further],
            self.lengths[rows],
            self.segments[rows, :width],
            self.positions[rows],
            self.weights[rows],
            self.targets[rows],
            self.label[rows],
        )


def _bert(layers: int, heads: int, hidden: int, positions: int = 512) -> BertConfig:
    return BertConfig(
        num_layers=layers,
        num_heads=heads,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
    )


def _gpt(layers: int, heads: int, hidden: int, positions: int) -> GptConfig:
    return GptConfig(
        num_layers=layers,
        num_heads=heads,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
    )


TINY = BertConfig(num_layers=2, num_heads=2, hidden_size=128, intermediate_size=512)
SMALL = BertConfig(num_layers=4, num_heads=8, hidden_size=512, intermediate_size=2048)

CASES: dict[str, tuple[Case, ...]] = {
    "cpu": (
        Case("BERT tiny, 128", TINY, WORDPIECE, 128, 32, 20),
        Case("BERT small, 128", SMALL, WORDPIECE, 128, 16, 20),
        Case(
            "BERT tiny, ragged to 256", TINY, WORDPIECE, 256, 16, 39, ragged=True, micro_batches=4
        ),
        Case("GPT tiny, 256", _gpt(2, 2, 128, 256), BYTE_BPE, 256, 4),
        Case("GPT small, 256", _gpt(4, 8, 512, 256), BYTE_BPE, 256, 4),
        Case("GPT small, 256, V 8,192", _gpt(4, 8, 512, 256), 8_192, 256, 4),
    ),
    "cuda": (
        Case("BERT base, 128", BertConfig(), WORDPIECE, 128, 1024, 20),
        Case("BERT base, 512", BertConfig(), WORDPIECE, 512, 128, 80),
        Case(
            "BERT base, 512, packed",
            BertConfig(),
            WORDPIECE,
            512,
            64,
            80,
            packed=True,
            micro_batches=2,
        ),
        Case("ModernBERT base, 1024", ModernBertConfig(), MODERN_BERT, 1024, 32, 160),
        Case("GPT-2 124M, 1024", GptConfig(), BYTE_BPE, 1024, 64),
    ),
    # The same in small, to try a GPU's benchmark where there is none.
    "simulated": (
        Case("BERT, 32", _bert(1, 2, 32, 32), 256, 32, 8, 5),
        Case("BERT, 64", _bert(1, 2, 32, 64), 256, 64, 4, 10),
        Case("BERT, 64, packed", _bert(1, 2, 32, 64), 256, 64, 8, 24, packed=True, micro_batches=2),
        Case(
            "ModernBERT, 64",
            ModernBertConfig(num_layers=2, num_heads=2, hidden_size=32, intermediate_size=48),
            256,
            64,
            4,
            10,
        ),
        Case("GPT, 64", _gpt(1, 2, 32, 64), 256, 64, 4),
    ),
    # What growth is measured with: rows stay, one size grows.
    "lengths": tuple(
        Case(f"length {length}", _bert(2, 2, 128, 1024), WORDPIECE, length, 8, length * 5 // 32)
        for length in (128, 256, 512, 1024)
    ),
    "widths": tuple(
        Case(f"width {width}", _bert(2, 2, width), WORDPIECE, 128, 8, 20)
        for width in (128, 256, 512)
    ),
}


def draw(case: Case, seed: int) -> Rows:
    """The rows of one step."""
    rng = np.random.default_rng(seed)
    B, T, M = case.rows * case.micro_batches, case.sequence_length, case.masked_positions
    lengths = np.full(B, T)
    if case.ragged or case.packed:
        texts = B if case.ragged else B * T // _SHORTEST
        lengths = np.exp(rng.normal(np.log(_MEDIAN), _SPREAD, texts))
        lengths = np.clip(lengths.astype(np.int64), _SHORTEST, T)
    if case.packed:
        ends = np.union1d(lengths.cumsum(), np.arange(1, B + 1) * T)
        lengths = np.diff(ends[ends <= B * T], prepend=0)
        B = len(lengths)
    width = T if case.is_bert else T + 1
    order = rng.random((B, T))
    order[np.arange(T) >= lengths[:, None]] = 2.0  # padding comes last
    masked = np.maximum(1, (_MASKED * lengths).astype(np.int64))
    weights = (np.arange(M) < masked[:, None]).astype(np.float32)
    filled = weights.astype(np.int64)
    ids = rng.integers(case.vocab_size, size=(B, width))
    return Rows(
        ids=ids,
        lengths=lengths,
        segments=(np.arange(T) >= lengths[:, None] // 2).astype(np.int64),
        positions=order.argsort(axis=1)[:, :M] * filled,
        weights=weights,
        targets=rng.integers(case.vocab_size, size=(B, M)) * filled,
        label=rng.integers(2, size=B),
    )


def tensor(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A contiguous copy on the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
