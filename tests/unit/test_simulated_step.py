"""A step's work and memory, counted on fake tensors, against counts by hand."""

from typing import Any

import pytest

from benchmarks.simulated_step import count
from benchmarks.training_cases import Case
from benchmarks.training_step import OURS
from rungwise.models.families.bert import BertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.transformer.body import NextTokenModel

D, INNER, LAYERS, V, B, T, M = 64, 256, 2, 1000, 8, 32, 5
SIZES: dict[str, Any] = {
    "num_layers": LAYERS,
    "num_heads": 2,
    "hidden_size": D,
    "intermediate_size": INNER,
}
BLOCK = 4 * D * D + 2 * D * INNER  # weights of its matrices
GPT = Case("GPT", GptConfig(**SIZES, max_position_embeddings=T), V, T, B)
BERT = Case("BERT", BertConfig(**SIZES, max_position_embeddings=T), V, T, B, M)


def test_logits_in_chunks_cost_no_product_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 operations a weight and token, with the output matrix as wide as a GPU has it."""
    by_hand = 6 * (LAYERS * BLOCK + D * 1024)
    whole = count(OURS, GPT)
    monkeypatch.setattr(NextTokenModel, "most_logits", B * T * V // 4)
    chunked = count(OURS, GPT)
    for counts in (whole, chunked, count("nanoGPT-style", GPT)):
        assert counts["real_tokens"] == B * T
        assert counts["product_flops"] == pytest.approx(by_hand * B * T, rel=1e-3)
        assert (counts["attention"], counts["graphs"]) == (2 * LAYERS, 2)
    assert chunked["products"] == whole["products"] + 3 * 3
    assert whole["largest_bytes"] == 4 * B * T * V
    assert chunked["largest_bytes"] == 4 * 1024 * D  # the gradient of the output matrix


def test_masked_logits_and_the_last_mlp_are_computed_where_they_are_read() -> None:
    tokens, predicted, pairs = B * T, B * M, B
    mlp = 2 * D * INNER
    by_hand = 6 * (
        tokens * (LAYERS * BLOCK - mlp)
        + (predicted + pairs) * mlp  # [CLS] is read too
        + predicted * (D * D + D * 1024)
        + pairs * (D * D + 2 * D)
    )
    counts = count(OURS, BERT)
    assert counts["product_flops"] == pytest.approx(by_hand, rel=0.02)
    assert counts["kept_bytes"] < 12 * LAYERS * tokens * INNER * 4


def test_state_is_weights_gradients_and_two_moments() -> None:
    embeddings = (V + T) * D
    block = BLOCK + 4 * D + INNER + D + 4 * D  # biases and norms
    assert count(OURS, GPT)["state_bytes"] == 16 * (embeddings + LAYERS * block + 2 * D)
