"""The task block: what is refused before anything runs, and what makes a task the same one."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.errors import ConfigError, DataError
from rungwise.tasks.config import FilesTaskConfig, identity, input_digests
from tests.task_cases import files_task

FORM = {"kind": "table", "columns": {"text": 0, "label": 1}, "header": False}
SCORES = FORM | {"columns": {"text": 0, "score": 1}}
ROWS = "".join(f"sentence {n}\t{'ab'[n % 2]}\n" for n in range(20))


def task(**keys: Any) -> FilesTaskConfig:
    data = {"kind": "files", "format": FORM, "validation_fraction": 0.2, "test_fraction": 0.2}
    return files_task(data | keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "file", "train": "a"}, r"kind: expected one of paragraph_label, next_paragraph"),
        ({"train": []}, r"task\.train"),
        ({"train": "a", "validation_fraction": None}, "task.validation_fraction, neither is set"),
        ({"train": "a", "test": "b"}, "expected test or task.test_fraction, both are set"),
        ({"train": "a", "test_fraction": 0.8}, "leave nothing to train on"),
        ({"train": "a", "train_examples": 0}, r"task\.train_examples"),
        ({"train": "a", "format": FORM | {"columns": {"text": 0}}}, "a task needs a column for"),
        (
            {"train": "a", "format": FORM | {"split": {"column": 2, "train": "t", "test": "e"}}},
            r"test and task\.format\.split\.test go together",
        ),
        (
            {
                "train": "a",
                "test": "a",
                "test_fraction": None,
                "format": FORM | {"split": {"column": 2, "train": "t"}},
            },
            r"test and task\.format\.split\.test go together",
        ),
    ],
)
def test_a_bad_block_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task(**keys)


def test_a_task_that_moves_is_the_same_and_one_that_changes_is_not(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "train.tsv").write_text(ROWS)
    (here / "test.tsv").write_text("words\ta\n")
    shutil.copytree(here, there)

    def facts(folder: Path, **keys: Any) -> str:
        paths = {"train": f"{folder}/train.tsv", "test": f"{folder}/test.tsv"}
        config = task(**paths, test_fraction=None, **keys)
        return fingerprint({"identity": identity(config), "outside": input_digests(config)})

    first = facts(here)
    assert facts(there) == first
    assert facts(here, seed=1) != first
    assert facts(here, train_examples=4) != first
    (there / "test.tsv").write_text("words\tb\n")
    assert facts(there) != first
    (there / "test.tsv").write_text("words\ta\n")
    assert facts(there) == first


def test_a_path_that_matches_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").touch()
    missing = str(tmp_path / "no.tsv")
    with pytest.raises(ConfigError) as error:
        input_digests(task(train=missing))
    assert str(error.value) == (
        f"data.train: no file matches {missing!r}; expected a file, folder or glob"
    )
    with pytest.raises(DataError, match=r"data\.train: expected data, found 1 empty files"):
        input_digests(task(train=str(tmp_path / "empty.tsv")))
