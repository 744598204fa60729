"""Rows for one forward pass: NumPy arrays where rows are read, tensors where a model reads them.

B batch, T sequence, L tokens of a text, R sentences of a run, M masked positions, S documents
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rungwise.core.arrays import Bools, Ints

if TYPE_CHECKING:  # building shards needs no PyTorch
    import torch

ArrayT = TypeVar("ArrayT", bound=Any)  # NDArray or Tensor
_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class Batch(ABC, Generic[ArrayT]):
    """B rows; a field is an array whose first axis is the rows, a batch of the rows, or None."""

    ids: ArrayT  # (B, ...) int64

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens without padding."""

    @abstractmethod
    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[Self]:
        """Yield the rows of NumPy arrays in `bins` parts that differ by at most one row. With
        `fixed_shapes`, for compiled models, parts are padded to the full length and name their
        lengths and boundaries even where there are none."""

    def predicted_ids(self) -> Ints:
        """The tokens that a model of these rows predicts, in any order; empty if it predicts
        none."""
        return np.empty(0, dtype=np.int64)

    def of_varying_size(self) -> tuple[ArrayT, ...]:
        """The arrays whose first axis differs from batch to batch, even with fixed shapes."""
        starts = getattr(self, "starts", None)
        return () if starts is None else (starts,)

    def tensors(self) -> Any:
        """The same batch with tensors that share the memory of contiguous arrays."""
        import torch

        return self._map(lambda array: torch.from_numpy(np.ascontiguousarray(array)))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Copy the tensors to `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy the tensors to page-locked memory, for asynchronous copies to a GPU."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Any], Any]) -> Self:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(
            self,
            **{
                name: value._map(function) if isinstance(value, Batch) else function(value)
                for name, value in values.items()
                if value is not None
            },
        )


def document_starts(document_BT: Ints, lengths_B: Ints) -> NDArray[np.int32]:
    """Where documents begin in the concatenated rows, and their end: the `Documents` of
    block.py. Padding, from `lengths_B` on, is a document of its own."""
    opens_BT = np.diff(document_BT, axis=1, prepend=-1) != 0
    padded = np.flatnonzero(lengths_B < document_BT.shape[1])
    opens_BT[padded, lengths_B[padded]] = True
    return np.append(np.flatnonzero(opens_BT), document_BT.size).astype(np.int32)


def padded_length(lengths: Ints, most: int) -> int:
    """The longest of the lengths, rounded up to a multiple that suits accelerators, or `most`."""
    return min(-(-int(lengths.max()) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, most)


@dataclass(frozen=True)
class TextBatch(Batch[ArrayT]):
    """Texts; ids are 0 from the length on."""

    # ids: (B, ..., L) int64
    lengths: ArrayT  # (B, ...) int64, tokens of each text

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def predicted_ids(self) -> Ints:
        return self.ids[np.arange(self.ids.shape[-1]) < self.lengths[..., None]]

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[Self]:
        """Yield parts of rows sorted by their longest text, as long as the longest of each."""
        longest_B = self.lengths.reshape(len(self.lengths), -1).max(axis=1)
        for rows in np.array_split(np.argsort(longest_B, kind="stable"), bins):
            L = self.ids.shape[-1]
            L = L if fixed_shapes else padded_length(longest_B[rows], L)
            part = self._map(lambda array, rows=rows: array[rows])
            yield dataclasses.replace(part, ids=part.ids[..., :L])


@dataclass(frozen=True)
class DocumentRows(TextBatch[ArrayT]):
    """A document in each row: ids (B, L), lengths (B,)."""


@dataclass(frozen=True)
class TextPairs(TextBatch[ArrayT]):
    """Pairs of texts, each text by itself: ids (B, 2, L), lengths (B, 2)."""


@dataclass(frozen=True)
class LabelledPairs(TextPairs[ArrayT]):
    """Pairs of texts, and what is to be told of them."""

    label: ArrayT  # (B,) int64


@dataclass(frozen=True)
class SentenceRuns(TextBatch[ArrayT]):
    """Runs of sentences; shorter runs end with empty sentences."""

    # ids: (B, R, L); lengths: (B, R), 0 behind the last sentence
    document: ArrayT  # (B, R) int64, which document of the run, from 1; 0 behind the last sentence

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[Any]:
        """Yield parts of consecutive runs, as long as the longest run and sentence of each."""
        for rows in np.array_split(np.arange(len(self.ids)), bins):
            lengths = self.lengths[rows]
            R, L = self.ids.shape[1:]
            if not fixed_shapes:
                R = int((lengths > 0).sum(axis=1).max())
                L = padded_length(lengths, L)
            yield SentenceRuns(self.ids[rows, :R, :L], lengths[:, :R], self.document[rows, :R])


@dataclass(frozen=True)
class CausalBatch(Batch[ArrayT]):
    """Inputs and targets; position i may attend to j <= i of the same document. Micro-batches
    without a boundary have no `document`, `positions` and `starts`, which the host knows without
    reading a tensor. Padding is at the end of a row."""

    # ids: (B, T) int64
    targets: ArrayT  # (B, T) int64, targets[t] is the token that follows ids[t]
    weights: ArrayT  # (B, T) float32, 1 for a real target, 0 at padding
    document: ArrayT | None = None  # (B, T) int64, tokens of one document share a number in a row
    positions: ArrayT | None = None  # (B, T) int64, from the beginning of the document or block
    starts: ArrayT | None = None  # (S + 1,) int32, see `document_starts`
    # For models that carry a state from block to block (training/state.py).
    streams: ArrayT | None = None  # (B,) int64, each row's stream on this worker
    continues: ArrayT | None = None  # (B,) bool, False where a stream starts over
    state: ArrayT | None = None  # (B, ...) float32, initial states

    @property
    def tokens(self) -> int:
        return int(self.weights.sum())

    def predicted_ids(self) -> Ints:
        return self.targets[self.weights > 0]

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[CausalBatch[ArrayT]]:
        """Yield parts of consecutive rows."""
        assert self.document is not None
        assert self.positions is not None
        column_T = np.arange(self.ids.shape[1])
        for rows in np.array_split(np.arange(len(self.ids)), bins):
            weights_BT, positions_BT = self.weights[rows], self.positions[rows]
            part: CausalBatch[Any] = CausalBatch(self.ids[rows], self.targets[rows], weights_BT)
            if fixed_shapes or (positions_BT != column_T).any():
                document_BT = self.document[rows]
                lengths_B = weights_BT.sum(axis=1).astype(np.int64)
                part = dataclasses.replace(
                    part,
                    document=document_BT,
                    positions=positions_BT,
                    starts=document_starts(document_BT, lengths_B),
                )
            yield part


def in_streams(
    parts: Sequence[CausalBatch[Any]], streams: Ints, continues: Bools
) -> list[CausalBatch[Any]]:
    """Add to micro-batches the stream of each row, and whether it continues the stream's text."""
    stops = np.cumsum([len(part.ids) for part in parts])[:-1]
    return [
        dataclasses.replace(part, streams=stream, continues=continuing)
        for part, stream, continuing in zip(
            parts, np.split(streams, stops), np.split(continues, stops), strict=True
        )
    ]


@dataclass(frozen=True)
class MaskedBatch(Batch[ArrayT]):
    """Masked rows. Micro-batches whose rows are all full have no `lengths`, which the host knows;
    reading it from a tensor on an accelerator would stall each step."""

    # ids: (B, T) int64, masked already
    segments: ArrayT  # (B, T) int64, 0 or 1; 0 at padding
    lengths: ArrayT | None  # (B,) int64, later positions are padding
    masked_positions: ArrayT  # (B, M) int64, filled up with 0
    masked_ids: ArrayT  # (B, M) int64, the original tokens, filled up with 0
    masked_weights: ArrayT  # (B, M) float32, 1 for a masked position, 0 for the filling
    label: ArrayT  # (B,) int64, 1 IsNext or in order, 0 NotNext or swapped; 1 without pairs
    # For packed rows; None if each row holds one text. Padding counts as a text.
    document: ArrayT | None = None  # (B, T) int64, which text of the row, from 1; 0 at padding
    positions: ArrayT | None = None  # (B, T) int64, from the beginning of the text
    starts: ArrayT | None = None  # (S + 1,) int32, see `document_starts`
    # For losses that compare all rows of the global batch (masked_variants.py).
    vectors: ArrayT | None = None  # (2, N, D) of all its rows, without a graph
    place: ArrayT | None = None  # (B,) int64, indices of these rows among them

    @classmethod
    def to_predict(
        cls, ids_BT: Any, segments_BT: Any, lengths_B: Any, positions_BM: Any
    ) -> MaskedBatch[Any]:
        """Rows whose masked tokens a model predicts, and nobody knows; no segments: all are 0."""
        return MaskedBatch(
            ids=ids_BT,
            segments=ids_BT * 0 if segments_BT is None else segments_BT,
            lengths=lengths_B,
            masked_positions=positions_BM,
            masked_ids=positions_BM * 0,
            masked_weights=positions_BM * 0.0,
            label=ids_BT[:, 0] * 0,
        )

    @property
    def tokens(self) -> int:
        return math.prod(self.ids.shape) if self.lengths is None else int(self.lengths.sum())

    def predicted_ids(self) -> Ints:
        return self.masked_ids[self.masked_weights > 0]

    def originals(self) -> Ints:
        """The ids (B, T) before masking, of NumPy arrays."""
        ids = self.ids.copy()
        row, column = np.nonzero(self.masked_weights)
        ids[row, self.masked_positions[row, column]] = self.masked_ids[row, column]
        return ids

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[Any]:
        """Yield parts of rows of similar length, as long as the longest of them."""
        assert self.lengths is not None
        by_length = np.argsort(self.lengths, kind="stable")
        for rows in np.array_split(by_length, bins):
            lengths, weights = self.lengths[rows], self.masked_weights[rows]
            width, slots = self.segments.shape[1], weights.shape[1]
            if not fixed_shapes:
                width = padded_length(lengths, width)
                slots = int(weights.sum(axis=1).max())
            document = positions = starts = None
            if self.document is not None and self.positions is not None:
                document, positions = self.document[rows, :width], self.positions[rows, :width]
                starts = document_starts(document, lengths)
            padded = fixed_shapes or bool((lengths < width).any())
            yield MaskedBatch(
                ids=self.ids[rows, :width],
                segments=self.segments[rows, :width],
                lengths=lengths if padded and document is None else None,
                masked_positions=self.masked_positions[rows, :slots],
                masked_ids=self.masked_ids[rows, :slots],
                masked_weights=weights[:, :slots],
                label=self.label[rows],
                document=document,
                positions=positions,
                starts=starts,
            )


@dataclass(frozen=True)
class CausalAndMaskedBatch(TextBatch[ArrayT]):
    """Rows in both forms; a micro-batch has each row in the form in which it is read, and None for
    a form that none of its rows has."""

    # ids: (B, T) int64, not masked; lengths: (B,)
    is_causal: ArrayT  # (B,) bool
    causal: CausalBatch[ArrayT] | None
    masked: MaskedBatch[ArrayT] | None

    def of_varying_size(self) -> tuple[ArrayT, ...]:
        parts = [part for part in (self.causal, self.masked) if part is not None]
        arrays = [getattr(part, field.name) for part in parts for field in dataclasses.fields(part)]
        return tuple(array for array in arrays if array is not None)

    def predicted_ids(self) -> Ints:
        masks = self.rows(np.arange(len(self.ids)))
        parts = [part.predicted_ids() for part in (masks.causal, masks.masked) if part]
        return np.concatenate(parts)

    def rows(self, rows: Ints) -> CausalAndMaskedBatch[ArrayT]:
        """These rows, each in the form in which it is read."""
        assert self.causal is not None
        assert self.masked is not None
        causal = self.is_causal[rows]
        return CausalAndMaskedBatch(
            self.ids[rows],
            self.lengths[rows],
            causal,
            self.causal._map(lambda array: array[rows[causal]]) if causal.any() else None,
            self.masked._map(lambda array: array[rows[~causal]]) if not causal.all() else None,
        )

    def micro_batches(self, bins: int, fixed_shapes: bool) -> Iterator[Any]:
        """Yield parts of consecutive rows; their causal and their masked rows are as long as the
        longest of each."""
        for rows in np.array_split(np.arange(len(self.ids)), bins):
            part = self.rows(rows)
            whole: dict[str, Any] = {
                name: None if form is None else next(form.micro_batches(1, fixed_shapes))
                for name, form in (("causal", part.causal), ("masked", part.masked))
            }
            yield dataclasses.replace(part, **whole)
