"""The step benchmark where only PyTorch is, and a step counted on fake tensors, by hand."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import training_cases, training_step
from benchmarks.baselines.nano_gpt import NanoGpt
from benchmarks.simulated_step import count
from benchmarks.training_cases import Case
from benchmarks.training_step import OURS
from rungwise.models.families.bert import BertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.transformer.block import parameter_count
from rungwise.models.transformer.body import NextTokenModel

REPOSITORY = Path(__file__).resolve().parents[3]
CPU = training_step.Setting("cpu", "float32", compile=False, threads=1)
SIZES: dict[str, Any] = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 64,
}
BERT = Case("bert", BertConfig(**SIZES, max_position_embeddings=32), 40, 32, 6, 5)
RAGGED = Case(
    "ragged",
    BertConfig(**SIZES, max_position_embeddings=32),
    40,
    32,
    3,
    5,
    ragged=True,
    micro_batches=2,
)
PACKED = replace(RAGGED, name="packed", rows=40, ragged=False, packed=True)
GPT = Case("gpt", GptConfig(**SIZES, max_position_embeddings=16), 40, 16, 4)

BARE = """
import json, sys
for name in ("ray", "mlflow", "pyarrow", "tokenizers", "safetensors", "transformers", "rich",
             "pandas", "fsspec", "scipy", "matplotlib"):
    sys.modules[name] = None
sys.path[:0] = ["platform", "."]
from benchmarks import training_step
setting = training_step.Setting("cpu", "float32", False, 1)
case = training_step.CASES["cpu"][3]
small = training_step.Case(
    "small", case.model.model_copy(update={"hidden_size": 16, "intermediate_size": 32}), 40, 16, 2
)
found = [training_step.Running(name, small, setting).measure(steps=1)["tokens"]
         for name in training_step.list_competitors(small) if training_step.installed(name)]
print(json.dumps({"tokens": found, "transformers": training_step.installed("transformers")}))
"""


def test_the_step_runs_where_only_pytorch_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == {"tokens": [32, 32], "transformers": False}


@pytest.mark.parametrize("case", [BERT, RAGGED, GPT], ids=lambda case: case.name)
def test_all_competitors_start_at_the_same_loss_and_count_the_same_tokens(case: Case) -> None:
    """Random weights of the same spread: each near the logarithm of the number of classes."""
    tokens = set()
    losses = []
    for name in training_step.list_competitors(case):
        running = training_step.Running(name, case, CPU)
        tokens.add(running.facts()["tokens_per_step"])
        losses.append(running.first_loss)
    assert len(tokens) == 1
    expected = torch.tensor(40.0).log() + (torch.tensor(2.0).log() if case.is_bert else 0.0)
    assert losses == pytest.approx([float(expected)] * len(losses), abs=0.15)


def test_ragged_rows_are_cut_to_the_longest_and_no_token_is_lost() -> None:
    rows = training_cases.draw(RAGGED, 1)
    shortest = rows.take(rows.lengths.argsort()[:3])
    assert shortest.lengths.max() <= shortest.ids.shape[1] < shortest.lengths.max() + 8
    assert (rows.weights.sum(axis=1) >= 1).all()
    assert (rows.positions < rows.lengths[:, None]).all()


def test_packed_texts_are_those_of_the_peers() -> None:
    rows = training_cases.draw(PACKED, 1)
    parts = training_step.build(training_step.OURS, PACKED, CPU).micro_batches(rows)
    assert [part.ids.shape for part in parts] == [(40, 32), (40, 32)]
    ids = np.concatenate([part.ids.flatten() for part in parts])
    assert (
        ids.tolist()
        == np.concatenate(
            [text[:length] for text, length in zip(rows.ids, rows.lengths, strict=True)]
        ).tolist()
    )
    for part in parts:
        assert part.starts.diff().tolist() == part.document.flatten().bincount().tolist()
        assert (part.positions.flatten()[part.starts[:-1].long()] == 0).all()
    # Masked places, counted through the whole, and the tokens that stood there.
    ends = rows.lengths.cumsum()
    text, slot = np.nonzero(rows.weights)
    theirs = set(
        zip(
            (ends - rows.lengths)[text] + rows.positions[text, slot],
            rows.targets[text, slot],
            strict=True,
        )
    )
    ours = set()
    for number, part in enumerate(parts):
        row, slot = np.nonzero(part.masked_weights.numpy())
        place = number * part.ids.numel() + row * 32 + part.masked_positions.numpy()[row, slot]
        ours |= set(zip(place, part.masked_ids.numpy()[row, slot], strict=True))
    assert ours == theirs
    assert len(ours) == len(text)


def test_the_plain_gpt_has_the_parameters_of_gpt_2() -> None:
    with torch.device("meta"):
        model = NanoGpt(12, 12, 768, 1024, 50_257)
    assert parameter_count(model) == 124_439_808


D, INNER, LAYERS, V, B, T, M = 64, 256, 2, 1000, 8, 32, 5
WIDE_SIZES: dict[str, Any] = {
    "num_layers": LAYERS,
    "num_heads": 2,
    "hidden_size": D,
    "intermediate_size": INNER,
}
BLOCK = 4 * D * D + 2 * D * INNER  # weights of its matrices
WIDE_GPT = Case("WIDE_GPT", GptConfig(**WIDE_SIZES, max_position_embeddings=T), V, T, B)
WIDE_BERT = Case("WIDE_BERT", BertConfig(**WIDE_SIZES, max_position_embeddings=T), V, T, B, M)


def test_logits_in_chunks_cost_no_product_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 operations a weight and token, with the output matrix as wide as a GPU has it."""
    by_hand = 6 * (LAYERS * BLOCK + D * 1024)
    whole = count(OURS, WIDE_GPT)
    monkeypatch.setattr(NextTokenModel, "most_logits", B * T * V // 4)
    chunked = count(OURS, WIDE_GPT)
    for counts in (whole, chunked, count("nanoGPT-style", WIDE_GPT)):
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
    counts = count(OURS, WIDE_BERT)
    assert counts["product_flops"] == pytest.approx(by_hand, rel=0.02)
    assert counts["kept_bytes"] < 12 * LAYERS * tokens * INNER * 4


def test_state_is_weights_gradients_and_two_moments() -> None:
    embeddings = (V + T) * D
    block = BLOCK + 4 * D + INNER + D + 4 * D  # biases and norms
    assert count(OURS, WIDE_GPT)["state_bytes"] == 16 * (embeddings + LAYERS * block + 2 * D)
