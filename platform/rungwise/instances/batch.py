"""Rows for one forward pass. Their arrays are NumPy's where rows are read, tensors where a model
reads them; a kind of instances derives its own class.

B batch
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # building shards needs no PyTorch
    import torch

ArrayT = TypeVar("ArrayT", bound=Any)  # NDArray or Tensor


@dataclass(frozen=True)
class Batch(ABC, Generic[ArrayT]):
    """B rows; a field is an array whose first axis is the rows, or None."""

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

    def predicted_ids(self) -> NDArray[np.int64]:
        """The tokens that a model of these rows predicts, in any order; empty if it predicts
        none."""
        return np.empty(0, dtype=np.int64)

    def of_varying_size(self) -> tuple[ArrayT, ...]:
        """The arrays whose first axis differs from batch to batch, even with fixed shapes."""
        return ()

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
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(
            self, **{name: function(array) for name, array in arrays.items() if array is not None}
        )


def document_starts(
    document_BT: NDArray[np.int64], lengths_B: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Where documents begin in the concatenated rows, and their end: the `Documents` of
    attention.py. Padding, from `lengths_B` on, is a document of its own."""
    opens_BT = np.diff(document_BT, axis=1, prepend=-1) != 0
    padded = np.flatnonzero(lengths_B < document_BT.shape[1])
    opens_BT[padded, lengths_B[padded]] = True
    return np.append(np.flatnonzero(opens_BT), document_BT.size).astype(np.int32)
