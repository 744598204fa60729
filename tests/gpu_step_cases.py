"""Micro-batches as the feed makes them of ragged rows for a compiled model, and families to take
them, for tests of the step that a GPU runs."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from rungwise.instances.batch import Batch, CausalBatch, MaskedBatch
from rungwise.models.families.log_bilinear import LogBilinearConfig
from rungwise.models.families.nnlm import NnlmConfig
from rungwise.models.family import Family
from tests.small_models import small_config

B, T, M, V = 8, 24, 4, 50
FAMILIES: dict[str, tuple[Family, str]] = {
    kind: (small_config(kind, max_position_embeddings=T), kind)
    for kind in ("mlm_nsp", "mlm", "sentence_order", "causal", "left_to_right", "bidirectional")
} | {
    "modern_bert": (small_config("modern_bert", max_position_embeddings=T), "mlm"),
    "modern_left_to_right": (
        small_config("modern_bert", max_position_embeddings=T),
        "left_to_right",
    ),
    "llama": (small_config("llama", max_position_embeddings=T), "causal"),
    "nnlm": (NnlmConfig(embedding_size=8, hidden_size=16), "causal"),
    "log_bilinear": (LogBilinearConfig(embedding_size=8), "causal"),
}


def micro_batch(family: Family, kind: str, seed: int, packed: bool = False) -> Batch[Tensor]:
    """What the feed makes of ragged rows for a compiled model."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(T // 2, T, B)
    objective = family.objective(kind)
    ids = rng.integers(5, V, (B, T))
    if not objective.masks:
        opens = rng.random((B, T)) < 0.2
        column = np.arange(T)
        begins = np.maximum.accumulate(np.where(opens, column, 0), axis=1)
        weights = (column < lengths[:, None]).astype(np.float32)
        number = np.cumsum(opens, axis=1)
        blocks = CausalBatch(ids, ids, weights, number, column - begins)
        (part,) = blocks.micro_batches(1, fixed_shapes=True)
        return part.tensors()
    places = np.tile(np.arange(M), (B, 1))
    targets = (places, ids[:, :M], np.ones((B, M), np.float32))
    batch = MaskedBatch(ids, np.zeros((B, T), int), lengths, *targets, np.ones(B, int))
    if packed:
        half = rng.integers(4, T // 2, (B, 1))
        number = np.where(np.arange(T) < half, 1, 2)
        number[np.arange(T) >= lengths[:, None]] = 0
        positions = np.arange(T) - np.where(number == 2, half, 0)
        batch = replace(batch, document=number, positions=positions)
    (part,) = batch.micro_batches(1, fixed_shapes=True)
    return part.tensors()
