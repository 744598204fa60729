"""The step benchmark where only PyTorch is, and its competitors at the start."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import training_step
from benchmarks.training_cases import Case
from rungwise.models.families.bert import BertConfig
from rungwise.models.families.gpt import GptConfig

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
