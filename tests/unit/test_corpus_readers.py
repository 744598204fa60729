"""Readers: each format, each layout, and each way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rungwise.core.errors import DataError
from rungwise.core.storage import find_files
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers import read_file
from rungwise.corpus.sources import Source
from rungwise.corpus.streams import Checked, Content, check, lines


def read(path: Path, maximum_bytes: int = 32_000_000, **source: Any) -> list[RawDocument]:
    block = TypeAdapter(Source).validate_python({"paths": [str(path)], **source})
    return [
        draft
        for file in find_files(str(path))
        for draft in read_file(file, block, 0, maximum_bytes)
    ]


def told(draft: RawDocument) -> str:
    """The reason that a document names for its unreadable file."""
    return json.loads(draft.unreadable)["reason"]


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
    (draft,) = read(path, kind="text", documents="line")
    assert (draft.id, draft.paragraphs, draft.reason) == ("a.txt", (), "not UTF-8")
    assert json.loads(draft.unreadable) == {
        "file": str(path),
        "reason": "not UTF-8: byte 0xe9 at offset 3",
    }
    with pytest.raises(DataError) as refused:
        read(path, kind="text", invalid_utf8="refuse")
    assert str(refused.value) == (
        f"{path} is not UTF-8: byte 0xe9 at offset 3; convert it, or set "
        "corpus.sources.0.invalid_utf8 to drop, replace or latin-1"
    )
    assert read(path, kind="text", invalid_utf8="replace")[0].paragraphs == ["caf\ufffd au lait"]
    assert read(path, kind="text", invalid_utf8="latin-1")[0].paragraphs == ["caf\u00e9 au lait"]
    # A file that is UTF-8 stays so beside one that is not.
    other = written(tmp_path / "b.txt", "caf\u00e9")
    assert read(other, kind="text", invalid_utf8="latin-1")[0].paragraphs == ["caf\u00e9"]
    utf16 = written(tmp_path / "c.txt", "words".encode("utf-16"))
    assert told(read(utf16, kind="text")[0]).endswith("it looks like UTF-16")


@pytest.mark.parametrize("offset", [0, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 1_500_000])
@pytest.mark.parametrize("packed", [False, True])
def test_the_place_of_a_bad_byte_is_named_wherever_it_is(
    tmp_path: Path, offset: int, packed: bool
) -> None:
    # Three bytes a character, so that pieces end inside of some.
    data = bytearray(("\u4f60" * 600_000).encode())
    offset -= offset % 3
    data[offset] = 0xFF
    name = "a.txt.gz" if packed else "a.txt"
    path = written(tmp_path / name, gzip.compress(data, 1) if packed else bytes(data))
    (draft,) = read(path, kind="text")
    assert told(draft) == f"not UTF-8: byte 0xff at offset {offset}"


def test_a_character_that_the_end_cuts_is_not_utf8(tmp_path: Path) -> None:
    (draft,) = read(written(tmp_path / "a.txt", "na\u00efve \u4f60".encode()[:-1]), kind="text")
    assert told(draft) == "not UTF-8: byte 0xe4 at offset 7"


@pytest.mark.parametrize("kind", ["text", "wikitext", "jsonl", "parquet"])
def test_an_empty_file_says_so(tmp_path: Path, kind: str) -> None:
    (draft,) = read(written(tmp_path / "a.x", b""), kind=kind)
    assert (draft.id, draft.paragraphs, draft.reason) == ("a.x", (), "empty file")


@pytest.mark.parametrize("content", [b"", b" \r\n\n"])
def test_a_file_of_blanks_is_empty_too(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "a.txt.gz", gzip.compress(content))
    (draft,) = read(path, kind="text", documents="line")
    assert draft.reason == "empty file"


LINES = [f"Line {number} of some random words {number * 7919}." for number in range(4000)]


@pytest.mark.parametrize("documents", ["line", "blank_line", "file"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.97])
def test_of_a_cut_off_gz_the_whole_documents_are_kept(
    tmp_path: Path, documents: str, kept: float
) -> None:
    joined = "\n".join(LINES) if documents == "line" else "\n\n".join(LINES)
    packed = gzip.compress(joined.encode())
    path = written(tmp_path / "a.txt.gz", packed[: int(len(packed) * kept)])
    *whole, last = read(path, kind="text", documents=documents)
    assert (last.reason, last.paragraphs) == ("cut-off .gz", ())
    assert told(last).startswith("a cut-off .gz, sound for ")
    assert [draft.paragraphs[0] for draft in whole] == LINES[: len(whole)]
    assert all(draft.reason == "" for draft in whole)
    # All that zlib itself gets out of the bytes, but for the unfinished line.
    sound = zlib.decompressobj(31).decompress(packed[: int(len(packed) * kept)]).decode()
    expected = 0 if documents == "file" else sound.count("\n" if documents == "line" else "\n\n")
    assert len(whole) == expected


def test_of_a_garbled_gz_what_stands_before_is_kept(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("\n".join(LINES).encode()))
    for at in range(len(packed) // 2, len(packed) // 2 + 40):
        packed[at] ^= 0xFF
    path = written(tmp_path / "a.txt.gz", bytes(packed))
    *whole, last = read(path, kind="text", documents="line")
    assert last.reason == "unsound .gz"
    assert told(last).startswith("an unsound .gz (")
    assert [draft.paragraphs[0] for draft in whole][:1000] == LINES[:1000]


def test_a_checksum_that_does_not_hold_is_seen(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("\n".join(LINES).encode()))
    packed[-6] ^= 1
    last = read(written(tmp_path / "a.txt.gz", bytes(packed)), kind="text", documents="line")[-1]
    assert last.reason == "unsound .gz"
    assert "incorrect data check" in told(last)


def test_members_and_zeros_at_the_end_of_a_gz_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"one\ntwo\nth") + gzip.compress(b"") + gzip.compress(b"ree\n")
    path = written(tmp_path / "a.txt.gz", packed + bytes(300_000))
    drafts = read(path, kind="text", documents="line")
    assert [draft.paragraphs for draft in drafts] == [("one",), ("two",), ("three",)]


@pytest.mark.parametrize("kind", ["text", "wikitext", "jsonl", "parquet"])
def test_a_broken_gz_is_named(tmp_path: Path, kind: str) -> None:
    whole = gzip.compress(json.dumps({"text": "some words " * 99}).encode())
    (cut,) = read(written(tmp_path / "cut.gz", whole[:-12]), kind=kind)
    assert (cut.reason, told(cut)[:13]) == ("cut-off .gz", "a cut-off .gz")
    (other,) = read(written(tmp_path / "not.gz", b"words"), kind=kind)
    assert (other.reason, told(other)[:23]) == ("unsound .gz", "an unsound .gz (Error -")


def test_a_json_line_that_is_cut_is_no_error(tmp_path: Path) -> None:
    records = "".join(json.dumps({"text": line}) + "\n" for line in LINES)
    packed = gzip.compress(records.encode())
    *whole, last = read(written(tmp_path / "a.jsonl.gz", packed[:9000]), kind="jsonl")
    assert len(whole) > 100
    assert (last.id, last.reason) == (f"a.jsonl.gz:{len(whole) + 1}", "cut-off .gz")


@pytest.mark.parametrize(
    ("kind", "keys", "text", "expected"),
    [
        ("text", {"documents": "line"}, "short\n{long}\nend", ["", "too long", ""]),
        ("text", {"documents": "line"}, "short\n{long}", ["", "too long"]),
        ("text", {"documents": "blank_line"}, "a\n{half}\n{half}\n\nend\n", ["too long", ""]),
        ("text", {"documents": "file"}, "a\n{half}\n{half}\n", ["too long"]),
        ("wikitext", {}, " = A = \nb\n{half}\n{half}\n = C = \nd\n", ["too long", ""]),
        ("jsonl", {}, '{{"text": "{long}"}}\n{{"text": "b"}}\n', ["too long", ""]),
        ("jsonl", {}, '{{"text": "{long}{long}{more}"}}\n{{"text": "b"}}', ["too long", ""]),
    ],
)
@pytest.mark.parametrize("letter", ["x", "\u4f60"])
def test_a_document_over_the_limit_is_dropped_and_the_rest_is_read(
    tmp_path: Path, kind: str, keys: dict[str, Any], text: str, expected: list[str], letter: str
) -> None:
    maximum = 3000
    over = letter * (maximum // len(letter.encode()) + 1)
    content = text.format(long=over, half=over[: len(over) // 2 + 1], more="x" * (1 << 20))
    drafts = read(written(tmp_path / "a.txt", content), maximum, kind=kind, **keys)
    assert [draft.reason for draft in drafts] == expected
    assert all(not draft.paragraphs for draft in drafts if draft.reason)


@pytest.mark.parametrize("documents", ["line", "blank_line", "file"])
def test_a_document_of_exactly_the_limit_is_kept(tmp_path: Path, documents: str) -> None:
    path = written(tmp_path / "a.txt", "\u4f60" * 1000 + "\n")
    kept, dropped = (
        read(path, maximum, kind="text", documents=documents) for maximum in (3000, 2999)
    )
    assert [draft.reason for draft in kept] == [""]
    assert [draft.reason for draft in dropped] == ["too long"]


def test_a_parquet_text_over_the_limit_is_dropped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b" * 11, "c"]}), tmp_path / "a.parquet")
    drafts = read(tmp_path / "a.parquet", 10, kind="parquet")
    assert [draft.reason for draft in drafts] == ["", "too long", ""]


@given(
    text=st.text(st.sampled_from("ab\n\r \u00e9\u4f60\U0001f600\ufeff"), max_size=40),
    piece=st.integers(1, 7),
    maximum=st.integers(1, 9),
)
def test_lines_are_the_same_in_any_pieces(text: str, piece: int, maximum: int) -> None:
    data = text.encode()

    class Pieces(Content):
        def __init__(self) -> None: ...

        def pieces(self) -> Iterator[bytes]:
            return (data[at : at + piece] for at in range(0, len(data), piece))

    plain = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    expected = [
        (number, "", "too long") if len(line.encode()) > maximum else (number, line, "")
        for number, line in enumerate(plain, start=1)
    ]
    assert check(Pieces()) == Checked()
    assert list(lines(Pieces(), Checked(), "utf-8", "strict", maximum)) == expected


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


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_spans_come_with_their_text(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    records = [{"text": "A big dog.", "where": [[2, 5], [6, 9]]}, {"text": "No.", "where": None}]
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        pq.write_table(pa.Table.from_pylist(records), path)
    first, second = read(path, kind=kind, spans_field="where")
    assert (first.text, list(first.spans)) == ("A big dog.", [(2, 5), (6, 9)])
    assert (second.text, list(second.spans)) == ("", [])
    with pytest.raises(DataError, match=r"change corpus\.sources\.0\.spans_field"):
        read(path, kind=kind, spans_field="there")


@pytest.mark.parametrize(
    "spans", ["[1, 2]", "[[1]]", "[[1, 2, 3]]", '[["1", "2"]]', "[[1.0, 2.0]]", "[[true, 2]]", "{}"]
)
def test_malformed_spans_are_named(tmp_path: Path, spans: str) -> None:
    path = written(
        tmp_path / "a.jsonl", f'{{"text": "fine", "s": []}}\n{{"text": "x", "s": {spans}}}'
    )
    with pytest.raises(DataError) as caught:
        read(path, kind="jsonl", spans_field="s")
    assert str(caught.value).startswith(f"{path}, line 2: the field 's' must be a list of [start,")
    assert str(caught.value).endswith("change corpus.sources.0.spans_field")


def test_bad_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["some words"] * 999}), path)
    cut = written(tmp_path / "cut.parquet", path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cut\.parquet: not a sound Parquet file"):
        read(cut, kind="parquet")
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(DataError, match="row 1: the field 'text' must be text, found int"):
        read(path, kind="parquet")
