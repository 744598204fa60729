"""A model trained by the real workflow, exported by the real command, read by transformers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import transformers

from rungwise.instances.batch import MaskedBatch
from rungwise.models.families.bert import BertForPretraining
from rungwise.pipeline.loading import find_built
from rungwise.tokenizer import open_encoder
from rungwise.training.pretrained import find_tokenizer, load_module
from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe

TEXT = "The parser returns every token, at once; naïve 中文 [MASK]"
SHAPE = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
}
CAUSAL: dict[str, Any] = {
    "tokenizer": {"kind": "byte_bpe", "vocab_size": 400, "lowercase": False},
    "instances": {"kind": "causal", "sequence_length": 32},
    "model": {"kind": "gpt", **SHAPE},
}


def rungwise(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rungwise", *arguments],
        cwd=REPOSITORY,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY_ADDRESS"))}
        | {"HOME": str(home), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow  # two whole runs
@torch.no_grad()
@pytest.mark.parametrize(
    ("changes", "auto", "sections"),
    [
        ({}, "AutoModelForPreTraining", ("reads", "blanks")),
        (CAUSAL, "AutoModelForCausalLM", ("continuations", "passage")),
    ],
    ids=["bert", "gpt"],
)
def test_a_trained_model_reads_text_the_same_in_transformers(
    changes: dict[str, Any], auto: str, sections: tuple[str, ...], tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "text", documents=40)
    recipe = small_recipe(tmp_path / "root", corpus, **changes)
    if changes:
        recipe["pretrain"] |= {"objective": "causal"}
    path = write_recipe(tmp_path / "recipe.yaml", recipe)
    rungwise(tmp_path, "run", "pretrain", str(path))
    [page] = (tmp_path / "root" / "report").glob("*/report.html")
    assert all(f'<section id="{name}">' in page.read_text("utf-8") for name in sections)
    out = tmp_path / "out"
    assert auto in rungwise(tmp_path, "export", str(path), "--to", str(out))

    pretrain = find_built(str(path), "artifacts")
    model: Any = load_module(pretrain)
    tokens = find_tokenizer(pretrain)
    ids = open_encoder(tokens.folder).encode(pa.array([TEXT.partition("[")[0]])).ids.tolist()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.encode(TEXT.partition("[")[0], add_special_tokens=False) == ids
    assert tokenizer.encode(TEXT, add_special_tokens=False)[-1] == 4  # theirs asks for a word so
    theirs = getattr(transformers, auto).from_pretrained(out).eval()
    inputs = tokenizer(TEXT, return_tensors="pt", truncation=True)
    if isinstance(model, BertForPretraining):
        every = torch.arange(inputs["input_ids"].shape[1])[None]
        rows = MaskedBatch.to_predict(inputs["input_ids"], inputs["token_type_ids"], None, every)
        ours = model(rows).mlm
        found = theirs(**inputs).prediction_logits
    else:
        ours, found = model.logits(inputs["input_ids"]), theirs(**inputs).logits
    torch.testing.assert_close(found, ours, atol=1e-5, rtol=1e-5)
