"""The corpus stage on Ray Data: the same bytes however it is spread, errors that stay one line."""

import gzip
import itertools
from pathlib import Path
from typing import Any

import pytest

from rungwise.cluster.tasks import Packs
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building import stage
from tests.corpora import build

pytestmark = pytest.mark.usefixtures("ray_session")


def documents_in(folder: Folder) -> list[str]:
    """The files of an artifact; nothing else may be left but a hidden summary."""
    return [name for name in folder.names() if not name.startswith(".")]


def digests(output: Path) -> dict[str, str]:
    folder = Folder.at(output)
    return {name: folder.sha256(name) for name in documents_in(folder)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """30 texts in two forms: every tenth is a copy of another, one is empty, one is short."""
    root = tmp_path_factory.mktemp("library")
    for number in range(30):
        original = number - 1 if number % 10 == 9 else number
        text = f"Dr. Jones wrote text {original}. It is long enough.\nIt has lines.\n\n" * 3
        name = f"{number % 3}/{number:03d}.txt"
        (root / name).parent.mkdir(exist_ok=True)
        if number % 3:
            (root / name).write_text(text)
        else:
            (root / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    (root / "empty.txt").touch()
    (root / "short.txt").write_text("Short.")
    return {"kind": "text", "paths": [str(root)], "label": "letters"}


def test_same_bytes_however_it_is_spread(
    tmp_path: Path, library: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"held_out_fraction": 0.2, "shard_megabytes": 0.0012, "near_duplicates": True}
    expected = build(tmp_path / "expected", library, **keys)
    assert len(expected.files) >= 6
    # So little text is else built without tasks, as `expected` was.
    for number_of_tasks, num_parts in ((1, 1), (7, 3)):

        def packs(items: list[Any], _: Any, count: int = number_of_tasks) -> Packs[Any]:
            return Packs(items[number::count] for number in range(count))

        monkeypatch.setattr(stage.tasks, "pack_items", packs)
        monkeypatch.setattr(stage, "choose_partitions", lambda _, parts=num_parts: parts)
        place = tmp_path / f"in {number_of_tasks} tasks"
        assert build(place, library, **keys) == expected, place
        assert digests(place) == digests(tmp_path / "expected"), place


def test_errors_are_one_line_for_users(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"caf\xe9")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"some words")[:-9])
    (tmp_path / "one.txt").write_text("One document that is long enough to be kept as it is.")
    outputs = (tmp_path / f"output-{number}" for number in itertools.count())

    def refusal(
        expected: type[UserError], keys: dict[str, Any] | None = None, **source: Any
    ) -> str:
        with pytest.raises(expected) as caught:
            build(next(outputs), {"kind": "text"} | source, **(keys or {}))
        assert type(caught.value) is expected
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert refusal(DataError, paths=[str(bad)]) == (
        "one part of the files cannot be read, 100.00% of their bytes, more than the 1.00% of "
        f"corpus.skip_limit; the first is {bad}, byte 0: not utf-8: byte 0xe9 at offset 3; mend "
        "the file, or change corpus.sources.0.encoding, or raise the limit"
    )
    assert refusal(DataError, paths=[str(bad)], keys={"skip_limit": 1.0}).startswith(
        f"no document long enough: found 1 not in its encoding ({bad}: "
        "not utf-8: byte 0xe9 at offset 3);"
    )
    (tmp_path / "one more.txt").write_text("Another document that is as long as the first one is.")
    assert "too few documents: 0 to train on" in refusal(
        DataError, keys={"held_out_fraction": 0.999}, paths=[str(tmp_path / "one*.txt")]
    )
    assert "no file matches" in refusal(ConfigError, paths=[str(tmp_path / "none")])
    # Ray says nothing of what the user is told in one line.
    assert "Traceback" not in capfd.readouterr().err
