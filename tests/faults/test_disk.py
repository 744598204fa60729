"""A disk without room: one clear line, status 2, and nothing that looks finished."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rungwise.__main__ import main
from tests.conftest import REPOSITORY, mounted_disk, small_recipe, write_corpus, write_recipe


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "32m") as place:
        yield place


def test_a_full_disk_is_named_before_a_stage_begins(
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(REPOSITORY)
    corpus = write_corpus(tmp_path / "text", documents=6)
    recipe = small_recipe(small_disk / "root", corpus)
    recipe["tracking"] = {"uri": f"sqlite:///{tmp_path}/mlflow.db"}
    config = write_recipe(tmp_path / "recipe.yaml", recipe)
    assert main(["run", "pretrain", str(config)]) == 2
    error = capfd.readouterr().err
    assert "no room left on the disk" in error
    assert "choose another root" in error
    assert "Traceback" not in error
    assert not list((small_disk / "root").glob("*/*/artifact.json"))
