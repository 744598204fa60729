"""A corpus of the hub in a run of its own process, whose workers read it too."""

from pathlib import Path

import pytest

from rungwise.core.stages.artifact import Artifact, find_artifacts
from rungwise.core.storage.folder import Folder
from tests.commands import RUNGWISE, execute
from tests.conftest import small_recipe, write_corpus, write_recipe
from tests.hub_server import hub

STAGES = ("corpus", "tokenizer", "tokens", "instances")


def run_instances(folder: Path, place: str, text: Path) -> dict[str, Artifact]:
    """Build the instances of the text at `place`; the artifacts by stage."""
    recipe = small_recipe(folder / "root", text)
    recipe["corpus"]["sources"][0]["paths"] = [f"{place}/*.txt"]
    recipe["tracking"] = {"uri": f"sqlite:///{folder}/mlflow.db"}
    folder.mkdir()
    config = write_recipe(folder / "recipe.yaml", recipe)
    execute([*RUNGWISE, "run", "instances", str(config)])
    return {each.stage: each for each in find_artifacts(Folder.at(folder / "root"))}


@pytest.mark.slow  # three whole runs; tests/unit/core/test_hub.py compares a corpus in one process
def test_a_corpus_of_the_hub_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_corpus(tmp_path / "text", documents=6)
    with hub(tmp_path / "hub", monkeypatch) as server:
        server.token = "hf_secretsecretsecret"
        server.private.add("datasets/org/text")
        commit = server.push_folder("datasets/org/text", text)
        monkeypatch.setenv("HF_TOKEN", server.token)
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "60")  # seconds, for a busy machine
        theirs = run_instances(tmp_path / "theirs", "hf://datasets/org/text", text)
    # The server has gone.
    again = run_instances(tmp_path / "again", "hf://datasets/org/text", text)
    ours = run_instances(tmp_path / "ours", str(text), text)
    for stage in STAGES:
        assert theirs[stage].digest == again[stage].digest == ours[stage].digest
    [source] = theirs["corpus"].record["config"]["sources"]
    assert source["paths"] == [f"hf://datasets/org/text@{commit}/*.txt"]
    for path in (tmp_path / "theirs").rglob("*"):
        assert path.is_dir() or server.token.encode() not in path.read_bytes()
