"""Pretrained models in the registry: registered by a run, asked in another process, promoted."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.models import get_model_info

from rungwise.serving import registry
from tests.commands import execute
from tests.conftest import Cli, small_gpt, small_recipe, write_corpus, write_recipe

WORDS = {"kind": "word", "vocab_size": 200, "min_frequency": 1}
# A kind, keys of a worse model, and what is answered.
RUNGS: dict[str, tuple[dict[str, Any], list[str], set[str]]] = {
    "bert": ({}, ["pretrain.steps=5"], {"vector"}),
    "gpt": (small_gpt(), ["pretrain.steps=5"], {"log_probability", "tokens"}),
    "ngram": (
        {
            "tokenizer": WORDS,
            "model": {"kind": "ngram", "order": 3, "fallback_discounts": [0.5, 1.0, 1.5]},
            "pretrain": {"kind": "counts"},
        },
        ["model.order=1"],
        {"log_probability", "tokens"},
    ),
    "word2vec": (
        {
            "tokenizer": WORDS,
            "model": {"kind": "word2vec", "size": 20},
            "pretrain": {"kind": "asynchronous", "epochs": 3},
        },
        ["pretrain.epochs=1"],
        {"vector", "nearest", "cosines"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNGS)
def test_from_a_recipe_to_the_alias(kind: str, tmp_path: Path, ray_session: None, cli: Cli) -> None:
    blocks, worse, keys = RUNGS[kind]
    root, name = tmp_path / "root", f"small-{kind}"
    recipe = small_recipe(root, write_corpus(tmp_path / "text", 40), registry={"name": "small"})
    config = write_recipe(tmp_path / "recipe.yaml", recipe | blocks)
    assert f"rungwise predict models:/{name}/1" in cli("run", "pretrain", str(config))
    uri = f"sqlite:///{root}/mlflow.db"
    client = MlflowClient(uri)
    assert client.get_model_version(name, "1").tags["rungwise.licence"] == "not stated"

    # A licence changes no text, so nothing is built again but the registered version.
    recipe["corpus"]["sources"][0]["licence"] = "CC BY 4.0"
    config.write_text(yaml.safe_dump(recipe | blocks))
    assert "1 of " in cli("run", "pretrain", str(config))
    version = client.get_model_version(name, "2")
    assert (str(version.version), version.tags["rungwise.licence"]) == ("2", "CC BY 4.0")
    assert "licence: CC BY 4.0" in str(version.description)

    mlflow.set_tracking_uri(uri)
    info = get_model_info(f"models:/{name}/2")
    assert {each.name for each in info.signature.outputs} == keys
    files = Path(download_artifacts(f"models:/{name}/2"))
    assert not [path for path in files.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt")]
    example = json.loads((files / "input_example.json").read_text())
    assert len(example) == 2
    code = (
        "import mlflow, sys; mlflow.set_tracking_uri(sys.argv[1]);"
        "model = mlflow.pyfunc.load_model(sys.argv[2]);"
        "params = {'length': 5, 'temperature': 0.0} if model.metadata.get_params_schema() else {};"
        "print(model.predict(sys.argv[3:], params).to_json());"
        "print(model.predict(sys.argv[3:]).to_json(orient='records', double_precision=15));"
        "assert 'ray' not in sys.modules"
    )
    command = [sys.executable, "-c", code, uri, f"models:/{name}/2", *example]
    variables = {each: value for each, value in os.environ.items() if each != "PYTHONPATH"}
    done = execute(command, tmp_path, variables)
    continued, by_mlflow = map(json.loads, done.stdout.strip().splitlines()[-2:])
    asked = tmp_path / "asked.txt"
    asked.write_text("".join(f"{text}\n" for text in example))
    for model in (f"models:/{name}/2", f"runs:/{version.run_id}/model", str(config)):
        said = cli("predict", model, "--root", str(root), "--input", str(asked))
        lines = [json.loads(line) for line in said.splitlines()]
        for own, line in zip(by_mlflow, lines, strict=True):
            assert own.keys() == keys
            for key in keys:
                same = line[key] if key == "nearest" else pytest.approx(line[key], rel=1e-6)
                assert own[key] == same

    assert ("continuation" in continued) == (kind == "gpt")
    if kind == "gpt":
        flags = ["--input", str(asked), "--length=5", "--temperature=0"]
        said = cli("predict", str(config), "--root", str(root), *flags)
        lines = [json.loads(line) for line in said.splitlines()]
        assert [line["continuation"] for line in lines] == list(continued["continuation"].values())
    cli("run", "pretrain", str(config), *worse)
    assert registry.find_holder(client, name, "champion") == "2", "its validation loss is lower"
    promote = ["promote", f"models:/{name}/3", "--root", str(root), "--to", "trial"]
    if kind != "word2vec":  # order 1 and five steps are no better than guessing by frequency
        assert "is that of guessing by how often each token occurs" in cli(*promote, status=2)
        return
    cli(*promote)  # nobody holds it
    cli("promote", f"models:/{name}/1", "--root", str(root), "--to", "trial")
