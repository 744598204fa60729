"""Readers: each format, each layout, and each way in which a file can be wrong."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rungwise.core.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage import find_files
from rungwise.corpus.document import Damage, RawDocument
from rungwise.corpus.ranges import Range, read_range
from rungwise.corpus.sources import CorpusConfig


def read(
    path: Path, maximum_bytes: int = 32_000_000, on_error: str = "skip", **source: Any
) -> list[RawDocument]:
    """The documents of whole files."""
    config = config_of(path, maximum_bytes, on_error, **source)
    return list(read_range(Range(0, 0, tuple(find_files(str(path)))), config))


def config_of(
    path: Path, maximum_bytes: int = 32_000_000, on_error: str = "skip", **source: Any
) -> CorpusConfig:
    return CorpusConfig.model_validate(
        {
            "sources": [{"paths": [str(path)], "name": "mine", **source}],
            "maximum_document_megabytes": maximum_bytes / 1e6,
            "on_error": on_error,
        }
    )


def damage_of(draft: RawDocument) -> Damage:
    assert draft.damage is not None
    assert draft.reason
    return draft.damage


def told(draft: RawDocument) -> str:
    """What a document says is wrong with its file."""
    return damage_of(draft).detail


def stopped(path: Path, **source: Any) -> str:
    """The error that the first damage of a file is if it stops the stage."""
    with pytest.raises(DataError) as caught:
        read(path, on_error="stop", **source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


TEXT = "A first line\nand a second.\n\nA new block\n  \n\nThe last.\n"


@pytest.mark.parametrize(
    ("documents", "lines", "expected"),
    [
        ("file", "wrapped", [["A first line and a second.", "A new block", "The last."]]),
        ("file", "paragraph", [["A first line", "and a second.", "A new block", "The last."]]),
        ("file", "sentence", [["A first line\nand a second.", "A new block", "The last."]]),
        (
            "blank_line",
            "wrapped",
            [["A first line and a second."], ["A new block"], ["The last."]],
        ),
        (
            "blank_line",
            "sentence",
            [["A first line\nand a second."], ["A new block"], ["The last."]],
        ),
        (
            "line",
            "paragraph",
            [["A first line"], ["and a second."], ["A new block"], ["The last."]],
        ),
    ],
)
@pytest.mark.parametrize("form", ["plain", "crlf", "cr", "bom", "gz", "bz2", "xz", "zst"])
def test_text(
    tmp_path: Path, documents: str, lines: str, expected: list[list[str]], form: str
) -> None:
    data = TEXT.encode()
    data = {
        "crlf": data.replace(b"\n", b"\r\n"),
        "cr": data.replace(b"\n", b"\r"),
        "bom": b"\xef\xbb\xbf" + data,
    }.get(form, data)
    name = f"book.txt.{form}" if form in PACKED else "book.txt"
    path = written(tmp_path / name, PACKED.get(form, bytes)(data))
    drafts = read(path, kind="text", documents=documents, lines=lines)
    assert [list(draft.paragraphs) for draft in drafts] == expected
    places = [data.index(paragraphs[0][:8].encode()) for paragraphs in expected]
    places[0] = 0
    assert [draft.id for draft in drafts] == [
        name if documents == "file" else f"{name}:{place}" for place in places
    ]
    assert {draft.label for draft in drafts} == {"mine"}
    assert {draft.segmented for draft in drafts} == {lines == "sentence"}


def test_ids_are_relative_to_the_source(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    written(tmp_path / "in" / "deep" / "a.txt", "Words.")
    (draft,) = read(tmp_path / "in", kind="text", label="books")
    assert (draft.id, draft.label) == ("deep/a.txt", "books")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"fine\ncaf\xe9 au lait\nfine too\n")
    first, draft, last = read(path, kind="text", documents="line")
    assert (draft.id, draft.paragraphs, draft.reason) == ("a.txt:5", (), "not in its encoding")
    detail = "not utf-8: byte 0xe9 at offset 8"
    key = "corpus.sources.0.encoding"
    assert draft.damage == Damage(str(path), "byte 5", 13, detail, key)
    assert (first.paragraphs, last.paragraphs) == (["fine"], ["fine too"])
    assert stopped(path, kind="text", documents="line") == (
        f"{path}, line 2: {detail}; mend the file, or change {key}, or set corpus.on_error=skip"
    )
    latin = read(path, kind="text", documents="line", encoding="latin-1")
    assert [draft.paragraphs for draft in latin] == [["fine"], ["caf\xe9 au lait"], ["fine too"]]
    utf16 = written(tmp_path / "c.txt", "words".encode("utf-16"))
    assert told(read(utf16, kind="text")[0]).endswith("it looks like UTF-16")


GERMAN = (
    "Der J\u00fcngling \u00f6ffnete die T\u00fcr und h\u00f6rte, wie drau\u00dfen die V\u00f6gel "
    "sangen.\nEr ging \u00fcber die Br\u00fccke nach K\u00f6ln.\n"
) * 20


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("documents", ["line", "file", "blank_line"])
@pytest.mark.parametrize("detected", [True, False])
def test_encodings(tmp_path: Path, encoding: str, documents: str, detected: bool) -> None:
    data = ("Plain words first.\n" + GERMAN).encode(encoding)
    if encoding == "utf-16-le":
        data = b"\xff\xfe" + data
    path = written(tmp_path / "a.txt", data)
    keys = {"kind": "text", "documents": documents, "lines": "paragraph"}
    drafts = read(path, **keys, encoding="detect" if detected else encoding)
    text = "\n".join(paragraph for draft in drafts for paragraph in draft.paragraphs)
    assert text.removeprefix("\ufeff") == ("Plain words first.\n" + GERMAN).rstrip()
    assert {draft.damage for draft in drafts} == {None}


def test_an_encoding_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"encoding: expected a text encoding that Python knows"):
        source = {"kind": "text", "paths": ["a"], "encoding": "utf-99"}
        validate(CorpusConfig, {"sources": [source]})


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
    assert told(draft) == f"not utf-8: byte 0xff at offset {offset}"


def test_a_character_that_the_end_cuts_is_not_utf8(tmp_path: Path) -> None:
    (draft,) = read(written(tmp_path / "a.txt", "na\u00efve \u4f60".encode()[:-1]), kind="text")
    assert told(draft) == "not utf-8: byte 0xe4 at offset 7"


@pytest.mark.parametrize("kind", ["text", "wikitext", "jsonl", "parquet", "arrow", "warc"])
def test_an_empty_file_says_so(tmp_path: Path, kind: str) -> None:
    (draft,) = read(written(tmp_path / "a.x", b""), kind=kind)
    assert (draft.id, draft.paragraphs, draft.reason) == ("a.x", (), "empty file")
    assert "change corpus.sources.0.paths" in stopped(tmp_path / "a.x", kind=kind)


@pytest.mark.parametrize("content", [b"", b" \r\n\n"])
def test_a_file_of_blanks_is_empty_too(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "a.txt.gz", gzip.compress(content))
    (draft,) = read(path, kind="text", documents="line")
    assert draft.reason == "empty file"


LINES = [f"Line {number} of some random words {number * 7919}." for number in range(4000)]


@pytest.mark.parametrize("documents", ["line", "blank_line", "file"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.97])
@pytest.mark.parametrize("form", PACKED)
def test_of_a_cut_off_file_the_whole_documents_are_kept(
    tmp_path: Path, documents: str, kept: float, form: str
) -> None:
    joined = "\n".join(LINES) if documents == "line" else "\n\n".join(LINES)
    packed = PACKED[form](joined.encode())
    cut = packed[: int(len(packed) * kept)]
    path = written(tmp_path / f"a.txt.{form}", cut)
    *whole, last = read(path, kind="text", documents=documents)
    assert (last.reason, last.paragraphs) == ("cut-off file", ())
    assert told(last).startswith(f"a cut-off .{form}, sound for ")
    assert damage_of(last).bytes > 0
    assert [draft.paragraphs[0] for draft in whole] == LINES[: len(whole)]
    assert all(draft.reason == "" for draft in whole)
    if documents == "file":
        assert not whole
    elif form == "gz":
        # All that zlib itself gets out of the bytes, but for the unfinished line.
        sound = zlib.decompressobj(31).decompress(cut).decode()
        assert len(whole) == sound.count("\n" if documents == "line" else "\n\n")
    assert f"a cut-off .{form}" in stopped(path, kind="text", documents=documents)


@pytest.mark.parametrize("form", PACKED)
def test_of_a_garbled_file_what_stands_before_is_kept(tmp_path: Path, form: str) -> None:
    # Two members, so that there is something sound before in every format.
    whole_packed = PACKED[form]("\n".join(LINES[:1000]).encode() + b"\n")
    packed = bytearray(PACKED[form]("\n".join(LINES[1000:]).encode()))
    for at in range(len(packed) // 2, len(packed) // 2 + 40):
        packed[at] ^= 0xFF
    path = written(tmp_path / f"a.txt.{form}", whole_packed + bytes(packed))
    *whole, last = read(path, kind="text", documents="line")
    assert last.reason == "unsound file"
    assert told(last).startswith(f"an unsound .{form} (")
    assert [draft.paragraphs[0] for draft in whole][:1000] == LINES[:1000]


def test_a_checksum_that_does_not_hold_is_seen(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("\n".join(LINES).encode()))
    packed[-6] ^= 1
    last = read(written(tmp_path / "a.txt.gz", bytes(packed)), kind="text", documents="line")[-1]
    assert last.reason == "unsound file"
    assert "CRC check failed" in told(last)


def test_members_and_zeros_at_the_end_of_a_gz_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"one\ntwo\nth") + gzip.compress(b"") + gzip.compress(b"ree\n")
    path = written(tmp_path / "a.txt.gz", packed + bytes(300_000))
    drafts = read(path, kind="text", documents="line")
    assert [draft.paragraphs for draft in drafts] == [["one"], ["two"], ["three"]]


@pytest.mark.parametrize("kind", ["text", "wikitext", "jsonl", "parquet"])
def test_a_broken_gz_is_named(tmp_path: Path, kind: str) -> None:
    whole = gzip.compress(json.dumps({"text": "some words " * 99}).encode())
    (cut,) = read(written(tmp_path / "cut.gz", whole[:-12]), kind=kind)
    assert (cut.reason, told(cut)[:13]) == ("cut-off file", "a cut-off .gz")
    (other,) = read(written(tmp_path / "not.gz", b"words"), kind=kind)
    assert (other.reason, told(other)[:25]) == ("unsound file", "an unsound .gz (Not a gzi")


def test_a_json_line_that_is_cut_is_no_error(tmp_path: Path) -> None:
    records = "".join(json.dumps({"text": line}) + "\n" for line in LINES)
    packed = gzip.compress(records.encode())
    *whole, last = read(written(tmp_path / "a.jsonl.gz", packed[:9000]), kind="jsonl")
    assert len(whole) > 100
    assert (last.id[:11], last.reason) == ("a.jsonl.gz:", "cut-off file")
    assert [draft.paragraphs for draft in whole] == [[line] for line in LINES[: len(whole)]]


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


def test_wikitext(tmp_path: Path) -> None:
    path = written(
        tmp_path / "wiki.raw",
        " \n = First Title = \n \n A well @-@ known 1 @,@ 000 @.@ 5 thing . \n"
        " = = A Section = = \n More = of it . \n = = = Deeper = = = \n \n"
        " = Second = \n \n Its text . \n",
    )
    first, second = read(path, kind="wikitext")
    assert (first.id, first.label) == ("wiki.raw:2", "mine")
    assert [paragraph.strip() for paragraph in first.paragraphs] == [
        "First Title",
        "A well-known 1,000.5 thing .",
        "A Section",
        "More = of it .",
        "Deeper",
    ]
    assert second.id == f"wiki.raw:{path.read_text().index(' = Second')}"


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
