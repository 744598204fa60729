"""The step benchmark on a bare machine: PyTorch, NumPy, pydantic and PyYAML, and nothing else."""

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
from benchmarks.training_cases import Case
from rungwise.models.families.bert import BertConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.transformer.block import parameter_count

REPOSITORY = Path(__file__).resolve().parents[2]
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
