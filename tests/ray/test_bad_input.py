"""Mistakes that only show while stages run: still one clear line, status 2, nothing half done."""

from pathlib import Path
from typing import Any

import pytest

from rungwise.__main__ import main
from rungwise.core.configuration.overrides import with_overrides
from tests.conftest import REPOSITORY, mounted_disk, small_recipe, write_corpus, write_recipe

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text"), documents=12)


@pytest.fixture(autouse=True)
def _in_the_repository_with_a_store(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)


def recipe(folder: Path, corpus: Path, **changes: Any) -> Path:
    changed = with_overrides(small_recipe(folder / "root", corpus), changes)
    return write_recipe(folder / "recipe.yaml", changed)


def refusal(config: Path, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    assert main(["run", "pretrain", str(config)]) == 2
    printed = capfd.readouterr().err
    assert "Traceback" not in printed
    [line] = [line for line in printed.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("stage", "changes", "message"),
    [
        ("tokenizer", {"tokenizer.vocab_size": 30_522}, "tokenizer.vocab_size: 30,522 asked"),
        pytest.param(
            "pretrain",
            {"pretrain.optimizer.learning_rate": 1e30},
            "lower pretrain.optimizer.learning_rate",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_is_named_by_the_stage_that_finds_it(
    stage: str,
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    corpus: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = refusal(recipe(tmp_path, corpus, **changes), capfd)
    assert line.startswith(f"error: {stage}: ")
    assert message in line
    assert not list((tmp_path / "root").glob(f"{stage}/*/artifact.json"))


def test_a_full_disk_is_named_before_a_stage_begins(
    tmp_path: Path, corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with mounted_disk(tmp_path / "disk", "32m") as place:
        line = refusal(recipe(place, corpus), capfd)
        assert "no room left on the disk" in line
        assert "choose another root" in line
        assert not list((place / "root").glob("*/*/artifact.json"))
