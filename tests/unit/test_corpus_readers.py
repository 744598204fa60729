"""Readers: each format, each layout, and each way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from rungwise.corpus.document import Draft
from rungwise.corpus.readers import read_file
from rungwise.corpus.sources import Source
from rungwise.errors import DataError
from rungwise.storage import find_files


def read(path: Path, **source: Any) -> list[Draft]:
    block = TypeAdapter(Source).validate_python({"paths": [str(path)], **source})
    return [draft for file in find_files(str(path)) for draft in read_file(file, block, 0)]


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


TEXT = "A first line\nand a second.\n\nA new block\n  \n\nThe last.\n"


@pytest.mark.parametrize(
    ("documents", "lines", "expected"),
    [
        ("file", "wrapped", {"": ["A first line and a second.", "A new block", "The last."]}),
        ("file", "paragraph", {"": ["A first line", "and a second.", "A new block", "The last."]}),
        ("file", "sentence", {"": ["A first line\nand a second.", "A new block", "The last.\n"]}),
        (
            "blank_line",
            "wrapped",
            {":1": ["A first line and a second."], ":4": ["A new block"], ":7": ["The last."]},
        ),
        (
            "blank_line",
            "sentence",
            {":1": ["A first line\nand a second."], ":4": ["A new block"], ":7": ["The last."]},
        ),
        (
            "line",
            "paragraph",
            {
                ":1": ["A first line"],
                ":2": ["and a second."],
                ":4": ["A new block"],
                ":7": ["The last."],
            },
        ),
    ],
)
@pytest.mark.parametrize("form", ["plain", "crlf", "bom", "gz"])
def test_text(
    tmp_path: Path, documents: str, lines: str, expected: dict[str, list[str]], form: str
) -> None:
    data = TEXT.encode()
    data = {
        "plain": data,
        "crlf": data.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + data,
        "gz": gzip.compress(data),
    }[form]
    name = "book.txt.gz" if form == "gz" else "book.txt"
    drafts = read(written(tmp_path / name, data), kind="text", documents=documents, lines=lines)
    assert {draft.id: list(draft.paragraphs) for draft in drafts} == {
        name + place: paragraphs for place, paragraphs in expected.items()
    }
    assert {draft.label for draft in drafts} == {"book"}
    assert {draft.segmented for draft in drafts} == {lines == "sentence"}


def test_ids_are_relative_to_the_source(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    written(tmp_path / "in" / "deep" / "a.txt", "Words.")
    (draft,) = read(tmp_path / "in", kind="text", label="mine")
    assert (draft.id, draft.label) == ("deep/a.txt", "mine")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"caf\xe9 au lait")
    with pytest.raises(DataError) as refused:
        read(path, kind="text")
    assert str(refused.value) == (
        f"{path} is not UTF-8: byte 0xe9 at offset 3; convert it, or set "
        "corpus.sources.0.invalid_utf8 to replace or latin-1"
    )
    assert read(path, kind="text", invalid_utf8="replace")[0].paragraphs == ["caf\ufffd au lait"]
    assert read(path, kind="text", invalid_utf8="latin-1")[0].paragraphs == ["caf\u00e9 au lait"]
    # A file that is UTF-8 stays so beside one that is not.
    other = written(tmp_path / "b.txt", "caf\u00e9")
    assert read(other, kind="text", invalid_utf8="latin-1")[0].paragraphs == ["caf\u00e9"]
    utf16 = written(tmp_path / "c.txt", "words".encode("utf-16"))
    with pytest.raises(DataError, match="it looks like UTF-16"):
        read(utf16, kind="text")


@pytest.mark.parametrize("kind", ["text", "wikitext", "jsonl", "parquet"])
def test_an_empty_file_says_so(tmp_path: Path, kind: str) -> None:
    (draft,) = read(written(tmp_path / "a.x", b""), kind=kind)
    assert (draft.id, draft.paragraphs, draft.reason) == ("a.x", (), "empty file")


@pytest.mark.parametrize("content", [b"", b" \r\n\n"])
def test_a_file_of_blanks_is_empty_too(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "a.txt.gz", gzip.compress(content))
    (draft,) = read(path, kind="text", documents="line")
    assert draft.reason == "empty file"


@pytest.mark.parametrize("kind", ["text", "wikitext", "jsonl", "parquet"])
def test_a_broken_gz_is_named(tmp_path: Path, kind: str) -> None:
    whole = gzip.compress(json.dumps({"text": "some words " * 99}).encode())
    cut = written(tmp_path / "cut.gz", whole[:-12])
    with pytest.raises(DataError, match=r"cut\.gz: the \.gz is cut off; copy or download it"):
        read(cut, kind=kind)
    flipped = written(tmp_path / "bad.gz", whole[:30] + bytes(5) + whole[35:])
    with pytest.raises(DataError, match=r"bad\.gz: not a sound \.gz file"):
        read(flipped, kind=kind)
    with pytest.raises(DataError, match=r"not\.gz: not a sound \.gz file"):
        read(written(tmp_path / "not.gz", b"words"), kind=kind)


def test_wikitext(tmp_path: Path) -> None:
    path = written(
        tmp_path / "wiki.raw",
        " \n = First Title = \n \n A well @-@ known 1 @,@ 000 @.@ 5 thing . \n"
        " = = A Section = = \n More = of it . \n = = = Deeper = = = \n \n"
        " = Second = \n \n Its text . \n",
    )
    first, second = read(path, kind="wikitext")
    assert (first.id, first.label) == ("wiki.raw:2", "wikitext")
    assert [paragraph.strip() for paragraph in first.paragraphs] == [
        "First Title",
        "A well-known 1,000.5 thing .",
        "A Section",
        "More = of it .",
        "Deeper",
    ]
    assert second.id == "wiki.raw:9"


def test_wikitext_2_has_as_many_articles_as_published(real_data: Path) -> None:
    folder = real_data / "corpora" / "en" / "wikitext-2-raw"
    for name, articles in (("wiki.valid.raw", 60), ("wiki.test.raw", 62)):
        assert len(read(folder / name, kind="wikitext")) == articles


RECORDS = [
    {"text": "One line.\nAnother.", "name": "a", "group": "x"},
    {"text": None, "name": "b", "group": "y"},
]


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet", "parquet.gz"])
def test_records(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"rows.{form}"
    kind = form.removesuffix(".gz")
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(record) for record in RECORDS) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(RECORDS), path)
    if form.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    plain = read(path, kind=kind)
    assert [draft.id for draft in plain] == [f"rows.{form}:1", f"rows.{form}:2"]
    assert [draft.paragraphs for draft in plain] == [["One line.", "Another."], []]
    named = read(path, kind=kind, id_field="name", label_field="group")
    assert [(draft.id, draft.label) for draft in named] == [("a", "x"), ("b", "y")]
    with pytest.raises(DataError, match=r"no field 'body'; the fields are group, name, text;"):
        read(path, kind=kind, text_field="body")
    with pytest.raises(DataError, match=r"change corpus\.sources\.0\.label_field"):
        read(path, kind=kind, label_field="topic")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "line 2: not JSON: "),
        ("[1]", "line 2: expected a JSON object, found list"),
        ('{"text": 3}', "line 2: the field 'text' must be text, found int"),
        ('{"text": ' + "[" * 100_000, "line 2: not JSON that can be read"),
        ('{"text": ' + "9" * 5000 + "}", "line 2: not JSON that can be read"),
    ],
    ids=["cut", "list", "number", "deep", "long"],
)
def test_bad_json_lines(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        read(path, kind="jsonl")
    assert f"{path}, {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["some words"] * 999}), path)
    cut = written(tmp_path / "cut.parquet", path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cut\.parquet: not a sound Parquet file"):
        read(cut, kind="parquet")
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(DataError, match="row 1: the field 'text' must be text, found int"):
        read(path, kind="parquet")
