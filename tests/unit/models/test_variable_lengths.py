"""Attention over documents of any length: that of a GPU's kernel, and of packed rows.

The kernel itself needs a GPU. Here its place is taken by one document after the other, so that what
is told to it (where documents begin, in which direction they are read) is compared with the dense
mask. Shapes: B batch, T sequence, N heads, H head size, X tokens.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.instances.batch import CausalBatch, document_starts
from tests.small_models import (
    KINDS,
    lengths_of,
    loss_and_gradient,
    objective_of,
    random_batch,
    random_masked_batch,
    shaken,
    small_model,
)


def one_after_the_other(
    query_XNH: Tensor,
    key_XNH: Tensor,
    value_XNH: Tensor,
    starts: Tensor,
    _: Tensor,
    longest: int,
    __: int,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What `varlen_attn` promises, by its documentation."""
    before, after = (longest if size < 0 else size for size in window_size)
    mixed = []
    for begin, end in pairwise(starts.tolist()):
        assert end - begin <= longest
        query, key, value = (
            part[begin:end].transpose(0, 1)[None] for part in (query_XNH, key_XNH, value_XNH)
        )
        place_T = torch.arange(end - begin)
        ahead_TT = place_T - place_T[:, None]
        near_TT = (ahead_TT <= after) & (-ahead_TT <= before)
        mixed_1NTH = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=near_TT, enable_gqa=enable_gqa
        )
        mixed.append(mixed_1NTH[0].transpose(0, 1))
    return torch.cat(mixed)


def with_starts(batch: Any) -> Any:
    if not isinstance(batch, CausalBatch):
        return batch
    assert batch.document is not None
    starts = document_starts(batch.document.numpy(), lengths_of(batch).numpy())
    return replace(batch, starts=torch.from_numpy(starts))


@pytest.mark.parametrize("kind", KINDS)
def test_variable_lengths_give_the_dense_result(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Padded rows of the masked objectives; of the others packed and padded blocks."""
    model = shaken(small_model(kind)).double()
    batch = with_starts(random_batch(kind, 4, 12, dtype=torch.float64))
    found = []
    for varlen in (False, True):
        monkeypatch.setattr(
            "rungwise.models.transformer.block.has_varlen", lambda *_, on=varlen: on
        )
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", one_after_the_other)
        sums, slope = loss_and_gradient(objective_of(kind), model, batch)
        found.append((sums.total.detach(), sums.correct, slope))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-10)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(24)  # by which three texts fit into a packed row


@pytest.mark.parametrize("kind", ["mlm", "modern_bert"])
def test_packed_rows_have_the_loss_and_the_gradient_of_padded_ones(kind: str) -> None:
    """Six texts as padded rows, and the same in two packed ones, of which one is padded."""
    model = shaken(small_model(kind, max_position_embeddings=20))
    alone = random_masked_batch(6, 8, 4)
    assert alone.lengths is not None
    rows, T = [[0, 1, 2], [3, 4, 5]], 20
    lengths = alone.lengths.tolist()
    packed: dict[str, list[Tensor]] = {name: [] for name in ("ids", "segments", "document")}
    packed |= {name: [] for name in ("positions", "masked_positions")}
    for texts in rows:
        begin, taken = 0, {name: torch.zeros(T, dtype=torch.int64) for name in packed}
        places = []
        for number, text in enumerate(texts):
            columns = slice(begin, begin + lengths[text])
            for name in ("ids", "segments"):
                taken[name][columns] = getattr(alone, name)[text, : lengths[text]]
            taken["document"][columns] = number + 1
            taken["positions"][columns] = torch.arange(lengths[text])
            places.append(alone.masked_positions[text] + begin)
            begin += lengths[text]
        taken["masked_positions"] = torch.cat(places)
        for name, values in taken.items():
            packed[name].append(values)
    together = replace(
        alone,
        **{name: torch.stack(values) for name, values in packed.items()},
        masked_ids=alone.masked_ids.view(2, -1),
        masked_weights=alone.masked_weights.view(2, -1),
        lengths=None,
        label=alone.label[:2],
    )
    found = []
    for batch in (alone, together):
        sums, slope = loss_and_gradient(objective_of(kind), model, batch)
        found.append((sums.total.detach(), sums.correct, slope))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
