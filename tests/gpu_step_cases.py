"""Ragged micro-batches, and families to take them, for tests of the step of a GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from rungwise.instances.batch import Batch, CausalAndMaskedBatch, CausalBatch, MaskedBatch
from rungwise.models.families.nnlm import LogBilinearConfig, NnlmConfig
from rungwise.models.family import Family
from rungwise.models.losses.objectives import OwnHead
from tests.small_models import small_config

B, T, M, V = 8, 40, 4, 50
# Layers of a ModernBERT differ, those of the others do not: one is enough to compile.
FAMILIES: dict[str, tuple[Family, str]] = {
    kind: (small_config(kind, max_position_embeddings=T, num_layers=1), kind)
    for kind in ("mlm_nsp", "mlm", "sentence_order", "causal", "left_to_right", "bidirectional")
} | {
    "modern_bert": (small_config("modern_bert", max_position_embeddings=T), "mlm"),
    "modern_left_to_right": (
        small_config("modern_bert", max_position_embeddings=T),
        "left_to_right",
    ),
    "llama": (small_config("llama", max_position_embeddings=T, num_layers=1), "causal"),
    "nnlm": (NnlmConfig(embedding_size=8, hidden_size=16), "causal"),
    "log_bilinear": (LogBilinearConfig(embedding_size=8), "causal"),
}
FAMILIES |= {
    f"{family.kind}_{objective.name}": (family, objective.name)
    for family in (FAMILIES["mlm"][0], FAMILIES["modern_bert"][0])
    for objective in family.objectives
    if isinstance(objective.head, OwnHead)
}
NO_ATTENTION = ("nnlm", "log_bilinear")
# A token sees more than those before it and fewer than all, which no kernel but the dense has.
DENSE = tuple(name for name in FAMILIES if name.endswith(("span_denoising", "permuted")))


def micro_batch(family: Family, kind: str, seed: int, packed: bool = False) -> Batch[Tensor]:
    """What the feed makes of ragged rows for a compiled model."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(T // 2, T, B)
    objective = family.objective(kind)
    ids = rng.integers(5, V, (B, T))
    columns = np.arange(T)
    opens = rng.random((B, T)) < 0.2
    begins = np.maximum.accumulate(np.where(opens, columns, 0), axis=1)
    weights = (columns < lengths[:, None]).astype(np.float32)
    causal = CausalBatch(ids, ids, weights, np.cumsum(opens, axis=1), columns - begins)
    places = np.tile(np.arange(M), (B, 1))
    targets = (places, ids[:, :M], np.ones((B, M), np.float32))
    second = (columns >= T // 2) & (columns < lengths[:, None])
    segments = second.astype(int) * (kind == "span_denoising")
    masked = MaskedBatch(ids, segments, lengths, *targets, np.ones(B, int))
    batch: Batch[Any] = masked if objective.masks else causal
    if packed:
        half = rng.integers(4, T // 2, (B, 1))
        number = np.where(columns < half, 1, 2)
        number[columns >= lengths[:, None]] = 0
        positions = columns - np.where(number == 2, half, 0)
        batch = replace(masked, document=number, positions=positions)
    if kind == "causal_and_masked":
        chosen = rng.permutation(B) < rng.integers(2, B - 1)
        batch = CausalAndMaskedBatch(ids, lengths, chosen, causal, masked)
    (part,) = batch.micro_batches(1, fixed_shapes=True)
    return part.tensors()
