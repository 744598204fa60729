"""The corpus block: what is refused before anything runs, and what makes a corpus the same one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.config import fingerprint, validate
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.corpus import CorpusConfig, PydocsSource, identity, outside


def corpus(*sources: dict[str, Any], **keys: Any) -> CorpusConfig:
    return validate(CorpusConfig, {"sources": list(sources), **keys})


def text(*paths: Path | str, **keys: Any) -> dict[str, Any]:
    return {"kind": "text", "paths": [str(path) for path in paths], **keys}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sources": []}, "sources: "),
        ({"sources": [{"kind": "txt", "paths": ["a"]}]}, "sources.0"),
        ({"sources": [{"kind": "text", "paths": []}]}, "sources.0.paths"),
        ({"sources": [{"kind": "text", "paths": ["a"], "label_field": "x"}]}, "unknown key"),
        ({"sources": [{"kind": "pydocs", "packages": ["os.path"]}]}, "sources.0.packages.0"),
        ({"sources": [{"kind": "pydocs"}], "held_out_fraction": 0}, "held_out_fraction"),
    ],
)
def test_bad_config_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(CorpusConfig, data)


def test_pydocs_is_a_source_by_itself() -> None:
    config = corpus({"kind": "pydocs"})
    assert isinstance(config.sources[0], PydocsSource)
    assert set(outside(config)["sources.0"]) == {"python", "packages"}


def test_a_corpus_that_moves_is_the_same_and_one_that_changes_is_not(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "a.txt").write_text("one")
    (here / "b.txt").write_text("two")
    there = tmp_path / "there"
    shutil.copytree(here, there)

    def facts(*sources: dict[str, Any]) -> str:
        config = corpus(*sources)
        return fingerprint({"identity": identity(config), "outside": outside(config)})

    first = facts(text(here))
    assert facts(text(there)) == first
    assert facts(text(there / "*.txt")) == first
    assert facts(text(there, label="x")) != first
    os.utime(there / "a.txt", (0, 0))
    assert facts(text(there)) == first
    (there / "a.txt").write_text("One")
    assert facts(text(there)) != first
    (there / "a.txt").write_text("one")
    (there / "b.txt").rename(there / "c.txt")
    assert facts(text(there)) != first


def test_a_source_that_matches_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full.txt").write_text("words")
    (tmp_path / "empty.txt").touch()
    missing = str(tmp_path / "no*.txt")
    with pytest.raises(ConfigError) as no_file:
        outside(corpus(text(tmp_path / "full.txt"), text(missing)))
    assert str(no_file.value) == (
        f"corpus.sources.1.paths: no file matches {missing!r}; expected a file, folder or glob"
    )
    with pytest.raises(DataError, match=r"corpus\.sources\.0\.paths: the corpus is empty: 1 file"):
        outside(corpus(text(tmp_path / "empty.txt")))
    assert outside(corpus(text(tmp_path)))["sources.0"]["files"] == 2
    with pytest.raises(UserError):
        outside(corpus(text(tmp_path / "nowhere")))


def test_a_file_that_two_paths_match_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    both = corpus(text(tmp_path, tmp_path / "*.txt"))
    assert outside(both)["sources.0"]["files"] == 1
