"""Paragraphs that also stand in a test split, and documents without them."""

# ruff: noqa: RUF001  (punctuation of Chinese is a subject here)
import gzip
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.errors import UserError
from rungwise.core.stages.notes import SharedResults
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.range_builder import RangeBuilder, list_ranges
from rungwise.corpus.building.range_task import RangeTask
from rungwise.corpus.cleaning.decontamination import (
    NgramHashes,
    hash_runs,
    hash_test_texts,
    hash_words,
)
from rungwise.corpus.config import CorpusConfig, DocumentRules, identity
from rungwise.corpus.document import RawDocument
from rungwise.corpus.files import input_digests, list_test_files


def config_of(folder: Path, ngram: int) -> CorpusConfig:
    block = {"paths": [str(folder)], "ngram": ngram}
    source = {"kind": "text", "paths": [str(folder / "c")], "documents": "line"}
    return validate(CorpusConfig, {"sources": [source], "decontaminate": block})


def hashed(folder: Path, ngram: int, files: dict[str, bytes]) -> NgramHashes:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    config = config_of(folder, ngram).decontaminate
    assert config is not None
    return hash_test_texts(list_test_files(config), ngram)


def paragraphs_left(
    documents: list[list[str]], tests: NgramHashes, **rules: int
) -> tuple[dict[str, list[str]], RangeBuilder]:
    builder = RangeBuilder(validate(DocumentRules, {"minimum_characters": 1} | rules), "x", tests)
    raw = [RawDocument(str(at), "", paragraphs) for at, paragraphs in enumerate(documents)]
    rows = [row for table in builder.tables(raw) for row in table.to_pylist()]
    return {row["id"]: row["sentences"] for row in rows}, builder


SENTENCE = "The quick brown fox, it's said, jumps."  # eight words


def test_a_paragraph_with_a_run_of_words_of_a_test_goes(tmp_path: Path) -> None:
    tests = hashed(tmp_path, 5, {"a.txt": f"1\t{SENTENCE}\tyes\n".encode()})
    documents = [
        [
            "Before it.",
            "He saw the QUICK  brown\u00a0fox \u2014 it\u2019s late. He left.",
            "After.",
        ],
        ["The quick brown fox is here.", "It's said that it jumps."],
        # From one paragraph into the next, but not from one document into the next.
        ["Look!", "The quick brown", "fox. It is.", "Yes."],
        ["Once more, the quick"],
        ["brown fox, it's said."],
        ["The quick brown fox, it jumps."],
    ]
    left, builder = paragraphs_left(documents, tests)
    assert left == {
        "0": ["Before it.", "After."],
        "1": ["The quick brown fox is here.", "It's said that it jumps."],
        "2": ["Look!", "Yes."],
        "3": ["Once more, the quick"],
    }
    assert builder.report.dropped == {"test text": 2}
    assert builder.report.paragraphs_cut == {"test text": 5}
    assert builder.report.characters_cut == {"test text": 47 + 25 + 21 + 30}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", json.dumps({"id": 1, "q": {"text": [f"\u00bb\n{SENTENCE}"]}}).encode()),
        ("a.json", json.dumps([{"text": SENTENCE}], indent=1).encode()),
        ("a.json.gz", gzip.compress(json.dumps(SENTENCE).encode(), mtime=0)),
        ("a.tsv", f"x\t{SENTENCE}\r\n".encode()),
        ("a.csv", b'\xef\xbb\xbf1,"' + SENTENCE.replace("'", '""').encode() + b'"\n'),
    ],
)
def test_kinds_of_files(tmp_path: Path, name: str, content: bytes) -> None:
    tests = hashed(tmp_path, 8, {name: content})
    left, _ = paragraphs_left([[f"Yes. {SENTENCE.lower()}"], ["Other words."]], tests)
    assert left == {"1": ["Other words."]}


def test_tests_are_cleaned_as_the_corpus_is(tmp_path: Path) -> None:
    text = "Le caf\xe9 du coin est ouvert."
    for name, same in (
        ("composed", unicodedata.normalize("NFD", text)),
        ("hyphens", text.replace("ouvert", "ou\xadvert")),
        ("joiners", text.replace("coin", "co\u200bin")),
    ):
        tests = hashed(tmp_path / name, 6, {"a.txt": same.encode()})
        assert paragraphs_left([[text]], tests)[0] == {}


def test_chinese_has_a_word_a_character(tmp_path: Path) -> None:
    tests = hashed(tmp_path, 5, {"a.txt": "今天天气很好。".encode()})
    left, _ = paragraphs_left([["他说，天气、很好。"], ["他说天气不好。"]], tests)
    assert left == {"0": ["他说，天气、很好。"], "1": ["他说天气不好。"]}
    left, _ = paragraphs_left([["他说：天天气，很好。"], ["今天天气不好。"]], tests)
    assert list(left) == ["1"]


def test_places_of_spans_are_not_kept_where_text_was_cut(tmp_path: Path) -> None:
    tests = hashed(tmp_path, 5, {"a.txt": SENTENCE.encode()})
    text = f"{SENTENCE}\nSee Bo Li here."
    raw = RawDocument("a", "", text.split("\n"), text=text, spans=[(0, 3), (43, 48)])
    (table,) = RangeBuilder(DocumentRules(minimum_characters=1), "x", tests).tables([raw])
    (row,) = table.to_pylist()
    assert (row["sentences"], row["spans"], row["spans_dropped"]) == (["See Bo Li here."], [], 2)


def test_what_is_left_of_a_document_may_be_too_short(tmp_path: Path) -> None:
    tests = hashed(tmp_path, 5, {"a.txt": SENTENCE.encode()})
    documents = [[SENTENCE, "Short."], ["Short."]]
    left, builder = paragraphs_left(documents, tests, minimum_characters=20)
    assert left == {}
    assert builder.report.dropped == {"test text": 1, "too short": 1}


WORDS = st.lists(st.sampled_from("ab"), min_size=1, max_size=6).map(" ".join)


@given(st.lists(st.lists(WORDS, min_size=1), min_size=1, max_size=6), WORDS, st.integers(2, 4))
def test_as_found_in_strings(documents: list[list[str]], test: str, ngram: int) -> None:
    words = test.split()
    runs = {" ".join(words[at : at + ngram]) for at in range(len(words) - ngram + 1)}
    if not runs:
        return
    tests = NgramHashes(np.unique(hash_runs(hash_words([test]), ngram).hashes), ngram)
    left, _ = paragraphs_left(documents, tests)
    expected = {}
    for number, paragraphs in enumerate(documents):
        text = " ".join(paragraphs)
        ends = np.cumsum([len(one) + 1 for one in paragraphs])
        touched = {
            int(np.searchsorted(ends, place, side="right"))
            for run in runs
            for match in re.finditer(f"(?={run})", text)
            for place in range(match.start(), match.start() + len(run))
            if text[place] != " "
        }
        kept = [one for at, one in enumerate(paragraphs) if at not in touched]
        if kept:
            expected[str(number)] = kept
    assert left == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": SENTENCE.encode()}, "no text has 9 words; name other files or lower"),
        ({"a.txt.gz": b"no gzip"}, r"cannot read .*a\.txt\.gz, of corpus\.decontaminate"),
        (
            {"a.parquet": b"PAR1\x80" + SENTENCE.encode() * 9},
            r"paths: .*a\.parquet is not UTF-8 at byte 4; expected",
        ),
        ({}, r"corpus\.decontaminate\.paths: no file matches"),
    ],
)
def test_tests_that_cannot_be_read_are_named(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        hashed(tmp_path / "tests", 9, files)


def test_the_bytes_of_tests_are_part_of_what_a_corpus_is(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("Some line.\n")
    config = config_of(tmp_path, 13)
    before = input_digests(config)
    assert identity(config)["decontaminate"] == {"ngram": 13}
    (tmp_path / "more.txt").write_text("x")
    assert input_digests(config)["decontaminate"] != before["decontaminate"]
    assert input_digests(config)["sources.0"] == before["sources.0"]


def test_tasks_read_what_the_driver_staged(tmp_path: Path) -> None:
    lines = [
        SENTENCE * 2,
        "Nothing of a test stands in this line, which is long enough to be kept.",
    ]
    (tmp_path / "c").write_text("\n".join(lines))
    (tmp_path / "t").write_text(SENTENCE)
    config = config_of(tmp_path / "t", 5).model_copy(
        update={"sources": config_of(tmp_path, 5).sources}
    )
    out = Folder.at(tmp_path / "out")
    task = RangeTask(config, out, SharedResults(out / "shared"))
    task.stage_tests()
    (only,) = list_ranges(config)
    report = task.read(only)
    assert report.documents == 1
    assert report.dropped == {"test text": 1}
