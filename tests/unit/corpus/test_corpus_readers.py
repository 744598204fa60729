"""Readers: each format, each layout, and each way in which a file can be wrong."""

import bz2
import codecs
import gzip
import io
import itertools
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rungwise.core.storage.source_files import find_files
from rungwise.corpus.building.range_builder import read_range
from rungwise.corpus.config import CorpusConfig, FileSource, Range, list_source_files
from rungwise.corpus.document import DocumentDamage, RawDocument
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.streams import detect_encoding, split_lines


def config_of(path: Path, maximum_bytes: int = 32_000_000, **source: Any) -> CorpusConfig:
    return CorpusConfig.model_validate(
        {
            "sources": [{"kind": "text", "paths": [str(path)], "name": "mine", **source}],
            "maximum_document_megabytes": maximum_bytes / 1e6,
        }
    )


def read(path: Path, *limit: int, **source: Any) -> list[RawDocument]:
    """The documents of whole files."""
    config = config_of(path, *limit, **source)
    return list(read_range(Range(0, 0, tuple(find_files(str(path)))), config))


def damage_of(draft: RawDocument) -> DocumentDamage:
    assert draft.damage is not None
    assert draft.reason
    return draft.damage


def detail_of(draft: RawDocument) -> str:
    return damage_of(draft).detail


def reasons_of(drafts: list[RawDocument]) -> list[str]:
    return [draft.reason for draft in drafts]


def paragraphs_of(drafts: list[RawDocument]) -> list[list[str]]:
    return [list(draft.paragraphs) for draft in drafts]


def first_damage(path: Path, **source: Any) -> str:
    """What is said of the first damage of a file."""
    damage = str(next(draft.damage for draft in read(path, **source) if draft.damage))
    assert "\n" not in damage
    return damage


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
BLOCKS = ["A first line and a second.", "A new block", "The last."]
SENTENCES = ["A first line\nand a second.", "A new block", "The last."]
LINES_OF_TEXT = ["A first line", "and a second.", "A new block", "The last."]


@pytest.mark.parametrize(
    ("documents", "lines", "expected"),
    [
        ("file", "wrapped", [BLOCKS]),
        ("file", "paragraph", [LINES_OF_TEXT]),
        ("file", "sentence", [SENTENCES]),
        ("blank_line", "wrapped", [[block] for block in BLOCKS]),
        ("blank_line", "sentence", [[block] for block in SENTENCES]),
        ("line", "paragraph", [[line] for line in LINES_OF_TEXT]),
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
    drafts = read(path, documents=documents, lines=lines)
    assert paragraphs_of(drafts) == expected
    places = [0, *(data.index(paragraphs[0][:8].encode()) for paragraphs in expected[1:])]
    ids = [f"{name}:{place}" for place in places]
    assert [draft.id for draft in drafts] == ([name] if documents == "file" else ids)
    assert {(draft.label, draft.segmented) for draft in drafts} == {("mine", lines == "sentence")}


def test_ids_are_relative_to_the_source(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    written(tmp_path / "in" / "deep" / "a.txt", "Words.")
    (draft,) = read(tmp_path / "in", label="books")
    assert (draft.id, draft.label) == ("deep/a.txt", "books")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"fine\ncaf\xe9 au lait\nfine too\n")
    first, draft, last = read(path, documents="line")
    detail, key = "not utf-8: byte 0xe9 at offset 8", "corpus.sources.0.encoding"
    assert (draft.id, draft.paragraphs) == ("a.txt:5", ())
    assert list(damage_of(draft).model_dump().values()) == [
        *(str(path), "byte 5", 13, "not in its encoding", detail, key)
    ]
    assert (first.paragraphs, last.paragraphs) == (["fine"], ["fine too"])


GERMAN = (
    "Der Jüngling öffnete die Tür und hörte, wie draußen die Vögel "
    "sangen.\nEr ging über die Brücke nach Köln.\n"
) * 20


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("documents", ["line", "file", "blank_line"])
@pytest.mark.parametrize("detected", [True, False])
def test_encodings(tmp_path: Path, encoding: str, documents: str, detected: bool) -> None:
    data = ("Plain words first.\n" + GERMAN).encode(encoding)
    if encoding == "utf-16-le":
        data = b"\xff\xfe" + data
    path = written(tmp_path / "a.txt", data)
    keys: dict[str, Any] = {"kind": "text", "documents": documents, "lines": "paragraph"}
    drafts = read(path, **keys, encoding="detect" if detected else encoding)
    text = "\n".join(paragraph for draft in drafts for paragraph in draft.paragraphs)
    assert text.removeprefix("\ufeff") == ("Plain words first.\n" + GERMAN).rstrip()
    assert all(draft.damage is None for draft in drafts)


RUSSIAN = (
    "\u0412\u0441\u0435 \u043b\u044e\u0434\u0438 "
    "\u0440\u043e\u0436\u0434\u0430\u044e\u0442\u0441\u044f "
    "\u0441\u0432\u043e\u0431\u043e\u0434\u043d\u044b\u043c\u0438 \u0438 "
    "\u0440\u0430\u0432\u043d\u044b\u043c\u0438 \u0432 \u0441\u0432\u043e\u0435\u043c "
    "\u0434\u043e\u0441\u0442\u043e\u0438\u043d\u0441\u0442\u0432\u0435 \u0438 "
    "\u043f\u0440\u0430\u0432\u0430\u0445.\n"
) * 30


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("documents", ["line", "file"])
def test_utf16_without_a_mark_is_seen(tmp_path: Path, encoding: str, documents: str) -> None:
    """All of its bytes are valid UTF-8: half of them would be removed as control characters."""
    data = RUSSIAN.encode(encoding)
    assert data.decode()
    path = written(tmp_path / "a.txt", data)
    for draft in read(path, documents=documents):
        assert detail_of(draft).endswith(f"; the file looks like {encoding.upper()}")
    drafts = read(path, documents=documents, lines="paragraph", encoding="detect")
    assert [line for draft in drafts for line in draft.paragraphs] == RUSSIAN.splitlines()
    assert {draft.encoding for draft in drafts} == {encoding}


@pytest.mark.parametrize(
    ("text", "encodings"),
    [
        (GERMAN, ["latin-1", "cp1252"]),
        (
            "A plain line.\n" * 300 + "He paid \u00a35 at the caf\u00e9 with Zo\u00eb.\n",
            ["latin-1"],
        ),
        ("Żółw ćwiczył źle, a ludzie byli wolni i równi.\n" * 9, ["cp1250"]),
        (RUSSIAN, ["cp1251", "koi8-r"]),
        (
            "\u5bf6\u7389\u9053\uff1a\u4f60\u4f86\u4e86\u3002\u4ed6\u5011\u90fd\u662f\u9019\u88e1\u7684\u4eba\u3002\n"
            * 9,
            ["big5"],
        ),
        ("No. 7: 他們都是這裡的人。\n" + "Plain.\n" * 99, ["big5"]),
        (
            "\u5b9d\u7389\u9053\uff1a\u4f60\u6765\u4e86\u3002\u4ed6\u4eec\u90fd\u662f\u8fd9\u91cc\u7684\u4eba\u3002\n"
            * 9,
            ["gb18030"],
        ),
        ("わたしはねこである。\n" * 9, ["cp932", "euc_jp"]),
        ("모든 인간은 태어날 때부터.\n" * 9, ["cp949"]),
    ],
    ids=["German", "signs", "Polish", "Russian", "Big5", "few Big5", "GB", "Japanese", "Korean"],
)
def test_detected_text_is_what_was_written(tmp_path: Path, text: str, encodings: list[str]) -> None:
    for encoding in encodings:
        data = text.encode(encoding)
        assert data.decode(detect_encoding(data) or "ascii") == text
        path = written(tmp_path / "a.txt", data)
        (draft,) = read(path, encoding="detect", lines="paragraph")
        assert list(draft.paragraphs) == text.splitlines()
        assert draft.encoding


@pytest.mark.parametrize(
    ("name", "pack", "advice"),
    [
        ("a.txt", gzip.compress, "a gzip file: give it a name in .gz"),
        ("a.tgz", gzip.compress, "a gzip file: give it a name in .gz"),
        ("a.txt", lzma.compress, "an xz file: give it a name in .xz"),
        ("a.txt", bz2.compress, "a bzip2 file: give it a name in .bz2"),
        ("a.tar.gz", lambda data: gzip.compress(archived(data)), "a tar archive: unpack it"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "detect"])
def test_what_is_no_text_is_named(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], advice: str, encoding: str
) -> None:
    path = written(tmp_path / name, pack("\n".join(LINES).encode()))
    (draft,) = read(path, encoding=encoding)
    assert detail_of(draft).endswith(f"; the file looks like {advice}")


def archived(data: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "pack"), [("a.TXT.GZ", "gz"), ("a.bgz", "gz"), ("a.Bz2", "bz2"), ("a.XZ", "xz")]
)
def test_suffixes_of_compression_may_be_of_any_case(tmp_path: Path, name: str, pack: str) -> None:
    (draft,) = read(written(tmp_path / name, PACKED[pack](b"words")))
    assert draft.paragraphs == ["words"]


@pytest.mark.parametrize("form", ["xz", "bz2"])
def test_later_streams_are_read_and_their_damage_is_listed(tmp_path: Path, form: str) -> None:
    """As `xz -dc` and `bzip2 -dc` read them, with the zeros that may stand between streams."""
    first, second, third = (PACKED[form](f"{word}\n".encode() * 5) for word in ("a", "b", "c"))
    padded = written(tmp_path / f"a.txt.{form}", first + bytes(8) + second + third + bytes(4))
    assert len(read(padded, documents="line")) == 15
    damaged = bytearray(second)
    damaged[1] ^= 0xFF  # of the first bytes, which say what follows
    path = written(tmp_path / f"b.txt.{form}", first + bytes(damaged) + third)
    *whole, last = read(path, documents="line")
    assert paragraphs_of(whole) == [["a"]] * 5
    assert damage_of(last).reason == "unsound file"
    assert damage_of(last).bytes == len(second) + len(third)
    cut = written(tmp_path / f"c.txt.{form}", first + second[:-6])
    assert damage_of(read(cut, documents="line")[-1]).reason == "cut-off file"


def test_an_xz_of_a_huge_dictionary_takes_no_memory_for_it(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 4096}]
    packed = bytearray(lzma.compress(b"words " * 99, filters=filters))
    header = packed[12 : 12 + (packed[12] + 1) * 4]
    header[4] = 40  # 4 GiB - 1, the largest that the format can state
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    packed[12 : 12 + len(header)] = header
    (draft,) = read(written(tmp_path / "a.xz", bytes(packed)))
    assert "Memory usage limit exceeded" in detail_of(draft)


def test_a_large_file_is_read_in_chunks_of_whole_paragraphs(tmp_path: Path) -> None:
    blocks = [f"Paragraph {number} is\nwrapped." for number in range(60)]
    path = written(tmp_path / "a.txt", "\n \n".join(blocks))
    drafts = read(path, documents="chunk", chunk_kilobytes=0.5)
    assert len(drafts) == path.stat().st_size // 500 + 1
    paragraphs = [one for draft in drafts for one in draft.paragraphs]
    assert paragraphs == [block.replace("\n", " ") for block in blocks]
    assert drafts[0].id == "a.txt:0"
    # A chunk of less than a byte is a line.
    path = written(tmp_path / "b.txt", "one\ntwo\n")
    drafts = read(path, documents="chunk", chunk_kilobytes=0.0001, lines="paragraph")
    assert paragraphs_of(drafts) == [["one"], ["two"]]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("sea wind harbour " * 3000, "paragraph"),  # as text8
        ("sea wind harbour " * 3000, "wrapped"),
        ("var a=1;" * 6000, "paragraph"),  # code without blanks
        ("你好" * 9000, "wrapped"),
        ("".join(f">{n}\n" + "ACGTTGCA" * 8 + "\n" for n in range(700)), "wrapped"),
        ("short\n\n" + "and so on\n" * 5000 + "\n\nshort", "wrapped"),
    ],
)
def test_a_text_without_a_place_to_cut_is_cut(tmp_path: Path, text: str, lines: str) -> None:
    path = written(tmp_path / "a.txt", text)
    drafts = read(path, 9000, documents="chunk", chunk_kilobytes=2, lines=lines)
    assert not any(reasons_of(drafts))
    joined = ["".join("".join(draft.paragraphs).split()) for draft in drafts]
    assert "".join(joined) == "".join(text.split())
    assert max(len(each.encode()) for each in joined) <= 4000
    assert len(drafts) >= len(text.encode()) // 4000
    words = {word for draft in drafts for one in draft.paragraphs for word in one.split()}
    assert " " not in text.strip() or words <= {*text.split()}


def test_a_pointer_is_no_document(tmp_path: Path) -> None:
    content = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0af' * 21}\nsize 12\n"
    (draft,) = read(written(tmp_path / "a.txt", content), documents="line")
    assert "stands for data elsewhere; fetch them" in detail_of(draft)


@pytest.mark.parametrize("offset", [0, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 1_500_000])
@pytest.mark.parametrize("packed", [False, True])
def test_the_place_of_any_bad_byte_is_named(tmp_path: Path, offset: int, packed: bool) -> None:
    # Three bytes a character, so that pieces end inside of some.
    data = bytearray(("你" * 600_000).encode())
    offset -= offset % 3
    data[offset] = 0xFF
    name = "a.txt.gz" if packed else "a.txt"
    path = written(tmp_path / name, gzip.compress(data, 1) if packed else bytes(data))
    (draft,) = read(path)
    assert detail_of(draft) == f"not utf-8: byte 0xff at offset {offset}"


@pytest.mark.parametrize("kind", ["text", "wikitext", "jsonl", "parquet", "arrow", "warc"])
def test_an_empty_file_says_so(tmp_path: Path, kind: str) -> None:
    (draft,) = read(written(tmp_path / "a.x", b""), kind=kind)
    assert (draft.id, draft.paragraphs, draft.reason) == ("a.x", (), "empty file")
    blank = written(tmp_path / "b.txt.gz", gzip.compress(b" \r\n\n"))
    assert reasons_of(read(blank, documents="line")) == ["empty file"]


LINES = [f"Line {number} of some random words {number * 7919}." for number in range(4000)]


@pytest.mark.parametrize("documents", ["line", "blank_line", "file"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.97])
@pytest.mark.parametrize("form", PACKED)
def test_whole_documents_are_kept(tmp_path: Path, documents: str, kept: float, form: str) -> None:
    joined = "\n".join(LINES) if documents == "line" else "\n\n".join(LINES)
    packed = PACKED[form](joined.encode())
    cut = packed[: int(len(packed) * kept)]
    path = written(tmp_path / f"a.txt.{form}", cut)
    *whole, last = read(path, documents=documents)
    assert (last.reason, last.paragraphs) == ("cut-off file", ())
    assert detail_of(last).startswith(f"a cut-off .{form}, sound for ")
    assert damage_of(last).bytes > 0
    assert paragraphs_of(whole) == [[line] for line in LINES[: len(whole)]]
    assert all(draft.reason == "" for draft in whole)
    if documents == "file":
        assert not whole
    elif form == "gz":
        # All that zlib itself gets out of the bytes, but for the unfinished line.
        sound = zlib.decompressobj(31).decompress(cut).decode()
        assert len(whole) == sound.count("\n" if documents == "line" else "\n\n")


def test_text_after_odd_bytes_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_LARGEST_PIECE", 1 << 12)
    data = "\n".join(LINES).encode("utf-16-le")
    half = len(data) // 2 // 2 * 2
    path = written(
        tmp_path / "a.txt", codecs.BOM_UTF16_LE + data[:half] + b"\x00\xd8" + data[half:]
    )
    *whole, last = read(path, documents="line", encoding="utf-16")
    assert paragraphs_of(whole) == [[line] for line in LINES[: len(whole)]]
    assert 0 <= damage_of(last).bytes - half < 1 << 13
    (last,) = read(written(path, b"of bytes"), documents="line", encoding="utf-16")
    assert (damage_of(last).bytes, detail_of(last)[-37:]) == (
        8,
        "UTF-16 stream does not start with BOM",
    )


def test_the_encoding_of_a_cut_off_file_is_guessed_from_what_is_intact(tmp_path: Path) -> None:
    lines = [f"{line} caf\xe9" for line in LINES]
    packed = gzip.compress("\n".join(lines).encode("latin-1"))[:-2000]
    *whole, last = read(written(tmp_path / "a.txt.gz", packed), documents="line", encoding="detect")
    assert last.reason == "cut-off file"
    assert len(whole) > 3000
    assert [draft.paragraphs[0] for draft in whole] == lines[: len(whole)]


@pytest.mark.parametrize("form", PACKED)
def test_of_a_garbled_file_what_stands_before_is_kept(tmp_path: Path, form: str) -> None:
    # Two members, so that there is something sound before in every format.
    whole_packed = PACKED[form]("\n".join(LINES[:1000]).encode() + b"\n")
    packed = bytearray(PACKED[form]("\n".join(LINES[1000:]).encode()))
    # pyarrow writes no checksum of zstd, so that only a broken frame shows.
    begin = 0 if form == "zst" else len(packed) // 2
    for at in range(begin, begin + 40):
        packed[at] ^= 0xFF
    path = written(tmp_path / f"a.txt.{form}", whole_packed + bytes(packed))
    *whole, last = read(path, documents="line")
    assert last.reason == "unsound file"
    assert detail_of(last).startswith(f"an unsound .{form} (")
    kept = 900 if form == "zst" else 1000
    assert [draft.paragraphs[0] for draft in whole][:kept] == LINES[:kept]


def test_members_zeros_and_the_checksum_of_a_gz_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"one\ntwo\nth") + gzip.compress(b"") + gzip.compress(b"ree\n")
    path = written(tmp_path / "a.txt.gz", packed + bytes(300_000))
    assert paragraphs_of(read(path, documents="line")) == [["one"], ["two"], ["three"]]
    garbled = bytearray(gzip.compress("\n".join(LINES).encode()))
    garbled[-6] ^= 1
    last = read(written(path, bytes(garbled)), documents="line")[-1]
    assert last.reason == "unsound file"
    assert "CRC check failed" in detail_of(last)


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
@pytest.mark.parametrize("letter", ["x", "你"])
def test_a_document_over_the_limit_is_dropped_and_the_rest_is_read(
    tmp_path: Path, kind: str, keys: dict[str, Any], text: str, expected: list[str], letter: str
) -> None:
    maximum = 3000
    over = letter * (maximum // len(letter.encode()) + 1)
    content = text.format(long=over, half=over[: len(over) // 2 + 1], more="x" * (1 << 20))
    drafts = read(written(tmp_path / "a.txt", content), maximum, kind=kind, **keys)
    assert reasons_of(drafts) == expected
    assert all(not draft.paragraphs for draft in drafts if draft.reason)


@pytest.mark.parametrize("documents", ["line", "blank_line", "file"])
def test_a_document_of_exactly_the_limit_is_kept(tmp_path: Path, documents: str) -> None:
    path = written(tmp_path / "a.txt", "你" * 1000 + "\n")
    assert reasons_of(read(path, 3000, documents=documents)) == [""]
    assert reasons_of(read(path, 2999, documents=documents)) == ["too long"]
    pq.write_table(pa.table({"text": ["a", "b" * 11, "c"]}), tmp_path / "a.parquet")
    assert reasons_of(read(tmp_path / "a.parquet", 10, kind="parquet")) == ["", "too long", ""]


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


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet", "arrow"])
def test_records(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"rows.{form}"
    kind = form.removesuffix(".gz")
    records_written(path, kind, RECORDS)
    if form.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    plain = read(path, kind=kind)
    second = len(json.dumps(RECORDS[0])) + 1 if kind == "jsonl" else 1
    assert [draft.id for draft in plain] == [f"rows.{form}:0", f"rows.{form}:{second}"]
    assert [draft.paragraphs for draft in plain] == [["One line.", "Another."], []]
    named = read(path, kind=kind, id_field="name", label_field="group")
    assert [(draft.id, draft.label) for draft in named] == [("a", "x"), ("b", "y")]
    missing = read(path, kind=kind, text_field="body")[0]
    assert detail_of(missing) == "no field 'body'; the fields are group, name, text"
    assert damage_of(missing).key == "corpus.sources.0.text_field"


def records_written(path: Path, kind: str, records: list[dict[str, Any]], rows: int = 2) -> None:
    """Write records as lines, or in groups or batches of `rows`."""
    table = pa.Table.from_pylist(records)
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    elif kind == "parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)


def test_a_dataset_saved_to_disk_is_read_without_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    records_written(tmp_path / "train" / "data-00000-of-00001.arrow", "arrow", RECORDS)
    records_written(tmp_path / "train" / "cache-1a2b.arrow", "arrow", RECORDS)
    for name in ("dataset_dict.json", "train/state.json", "train/dataset_info.json"):
        written(tmp_path / name, "{}")
    (source,) = config_of(tmp_path, kind="arrow").sources
    assert isinstance(source, FileSource)
    (file,) = list_source_files(source, 0)
    assert file.name == "train/data-00000-of-00001.arrow"


def test_the_arrow_file_format_is_read_too(tmp_path: Path) -> None:
    table, path = pa.Table.from_pylist(RECORDS), tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    drafts = read(path, kind="arrow")
    assert [(draft.id, draft.reason) for draft in drafts] == [("a.arrow:0", ""), ("a.arrow:1", "")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "not JSON: "),
        ("[1]", "expected a JSON object, found list"),
        ('{"text": 3}', "the field 'text' must be text, found int"),
        ('{"text": ' + "[" * 100_000, "not JSON that can be read"),
        ('{"text": ' + "9" * 5000 + "}", "not JSON that can be read"),
    ],
    ids=["cut", "list", "number", "deep", "long"],
)
def test_bad_json_lines(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "fine"}\n' + line + '\n{"text": "too"}\n')
    first, damaged, last = read(path, kind="jsonl")
    assert (first.paragraphs, last.paragraphs) == (["fine"], ["too"])
    assert message in detail_of(damaged)
    place, num_bytes = damage_of(damaged).place, damage_of(damaged).bytes
    assert (place, num_bytes, damaged.id) == ("byte 17", len(line) + 1, "a.jsonl:17")


def test_json_that_only_the_standard_library_reads(tmp_path: Path) -> None:
    huge = 2**200
    lines = f'{{"text": "a", "id": {huge}}}\n{{"text": "\\ud800", "id": NaN}}\n'
    drafts = read(written(tmp_path / "a.jsonl", lines), kind="jsonl", id_field="id")
    assert [draft.id for draft in drafts] == [str(huge), "nan"]
    assert paragraphs_of(drafts) == [["a"], ["\ud800"]]
    # A number is read again in the encoding of the file.
    line = '{"text": "Là-bas, une phrase assez longue.", "id": 18446744073709551616}\n'
    path = written(tmp_path / "b.jsonl", line.encode("latin-1"))
    (document,) = read(path, kind="jsonl", id_field="id", encoding="latin-1")
    assert (document.reason, document.id) == ("", "18446744073709551616")


def test_blanks_at_the_limit_do_not_join_words(tmp_path: Path) -> None:
    blanks = b" " * 3_000_000  # several pieces
    path = written(tmp_path / "a.txt", b"Some words" + blanks)
    assert paragraphs_of(read(path, 1_000_000)) == [["Some words"]]
    path = written(path, b"Some words" + blanks + b"and more")
    assert reasons_of(read(path, 1_000_000)) == ["too long"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_bad_tables(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    records_written(path, kind, [{"text": f"some words {n * 7919}"} for n in range(999)], 100)
    cut = written(tmp_path / f"cut.{kind}", path.read_bytes()[:-40])
    *whole, last = read(cut, kind=kind)
    # The directory of a Parquet file is at its end: nothing can be read without it.
    assert len(whole) == (0 if kind == "parquet" else 900)
    assert (last.reason, detail_of(last)[:22]) == ("unsound file", "unsound from here on: ")
    garbled = bytearray(path.read_bytes())
    garbled[len(garbled) // 2 : len(garbled) // 2 + 400] = b"\xff" * 400
    drafts = read(written(path, bytes(garbled)), kind=kind)
    assert any(draft.damage for draft in drafts)
    assert sum(draft.damage is None for draft in drafts) >= 400
    records_written(path, kind, [{"text": 1}, {"text": 2}])
    assert "row 0: the field 'text' must be text, found int" in first_damage(path, kind=kind)
    dates = pa.array([0, 2**30], pa.int32()).cast(pa.date32())
    table = pa.table({"text": ["a", "b"], "day": dates})
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    assert reasons_of(read(path, kind=kind, label_field="day"))[1:] == ["unsound value"]


def warc(*records: tuple[str, bytes]) -> bytes:
    return b"".join(
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
        + b"\r\n\r\n"
        for kind, body in records
    )


@pytest.mark.parametrize("form", ["wet", "wet.gz"])
def test_web_archives(tmp_path: Path, form: str) -> None:
    first = ("conversion", b"One line.\nAnother caf\xc3\xa9.\n")
    data = warc(("warcinfo", b"software: x"), first, ("conversion", b"b\xff"), ("metadata", b"c"))
    data += warc(("resource", b"Plain text."))
    pack = gzip.compress if form.endswith("gz") else bytes
    drafts = read(written(tmp_path / f"a.{form}", pack(data)), kind="warc")
    assert paragraphs_of(drafts) == [["One line.", "Another caf\xe9."], [], ["Plain text."]]
    assert drafts[0].id == f"a.{form}:{data.index(b'WARC/', 1)}"
    assert drafts[1].reason == "not in its encoding"
    cut = written(tmp_path / f"cut.{form}", pack(data)[:-12] if pack is bytes else pack(data)[:-9])
    assert [draft.reason for draft in read(cut, kind="warc")][-1] == "cut-off file"
    other = written(tmp_path / f"other.{form}", pack(b"<html>no archive</html>\n"))
    assert "unsound from here on" in first_damage(other, kind="warc")


@pytest.mark.parametrize("form", ["wet", "wet.gz"])
def test_what_a_web_archive_loses_is_counted(tmp_path: Path, form: str) -> None:
    pack = gzip.compress if form.endswith("gz") else bytes
    record = warc(("conversion", b"Some plain words. " * 50))
    rest = b"no record\r\n" + record * 40
    *whole, last = read(written(tmp_path / f"a.{form}", pack(record * 2 + rest)), kind="warc")
    assert (len(whole), last.reason) == (2, "unsound file")
    assert damage_of(last).bytes == len(rest)
    # Without its length, a record goes on to the end of the file.
    unstated = record.replace(b"Content-Length: 900\r\n", b"") + record * 40
    path = written(tmp_path / f"b.{form}", pack(record + unstated))
    for maximum, reason in ((32_000_000, "cut-off file"), (2000, "too long")):
        *whole, last = read(path, maximum, kind="warc")
        assert (len(whole), last.reason) == (1, reason)
        assert damage_of(last).bytes == pytest.approx(len(unstated), abs=4)


# What may go wrong at a cut: each kind of break, blanks, characters of several bytes.
ALPHABET = "ab= \n\r\t\u00e9\u4f60\U0001f600\u3000\u00a0\ufeff"


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "text", "documents": "line"},
        {"kind": "text", "documents": "blank_line", "lines": "sentence"},
        {"kind": "text", "documents": "chunk", "chunk_kilobytes": 0.007},
        {"kind": "text", "documents": "chunk", "chunk_kilobytes": 0.007, "lines": "paragraph"},
        {"kind": "wikitext"},
        {"kind": "jsonl"},
    ],
    ids=lambda source: source.get("documents", source["kind"]),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.text(st.sampled_from(ALPHABET), max_size=12)
        | st.sampled_from([" = A = \n", "\n\n", "\r\n\r\n", '{"text": "a"}\n', '{"text": 1}\r\n']),
        max_size=12,
    ),
    step=st.integers(1, 40),
    maximum=st.sampled_from([4, 9, 1000]),
)
def test_any_cuts_yield_the_documents_of_the_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, Any],
    pieces: list[str],
    step: int,
    maximum: int,
) -> None:
    monkeypatch.setattr("rungwise.corpus.readers.documents._SMALLEST_PART", 5)
    path = written(tmp_path / "a.txt", "".join(pieces))
    size = path.stat().st_size
    config = config_of(path, maximum, **source)
    files = tuple(find_files(str(path)))
    whole = list(read_range(Range(0, 0, files, 0, max(1, size)), config))
    cut = [
        draft
        for begin in range(0, size, step)
        for draft in read_range(Range(0, 0, files, begin, min(begin + step, size)), config)
    ]
    assert cut == whole
    if source.get("documents") == "line" and maximum == 1000:
        text = path.read_bytes().decode().removeprefix("\ufeff")
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert [draft.paragraphs for draft in whole] == [[line] for line in lines if line.strip()]
    assert len({draft.id for draft in whole}) == len(whole)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_any_cuts_yield_the_rows_of_the_whole(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    records_written(path, kind, [{"text": f"{n} " * (n % 7)} for n in range(60)], 7)
    config, files, size = config_of(path, kind=kind), find_files(str(path)), path.stat().st_size
    whole = read(path, kind=kind)
    assert [draft.id for draft in whole] == [f"{path.name}:{n}" for n in range(60)]
    for step in (100, 333, 1000, size):
        cuts = [(begin, min(begin + step, size)) for begin in range(0, size, step)]
        ranges = [Range(0, 0, tuple(files), *cut) for cut in cuts]
        assert [draft for cut in ranges for draft in read_range(cut, config)] == whole


@given(
    text=st.text(st.sampled_from("ab\n\r é你"), max_size=40),
    piece=st.integers(1, 7),
    maximum=st.integers(1, 9),
)
def test_lines_are_the_same_in_any_pieces(text: str, piece: int, maximum: int) -> None:
    data = text.encode()
    lines = data.splitlines(keepends=True)
    offsets = [0, *itertools.accumulate(map(len, lines))]
    expected = [
        (offset, line if len(line) <= maximum else len(line))
        for offset, line in zip(offsets, lines, strict=False)
    ]
    cut = (data[at : at + piece] for at in range(0, len(data), piece))
    result: list[tuple[int, bytes | int]] = []
    parts: list[tuple[int, bytes]] = []
    for offset, part, begins, ends in split_lines(cut, 0, maximum, maximum):
        parts = [] if begins else parts
        parts.append((offset, part))
        if ends:
            num_bytes = sum(len(one) for _, one in parts)
            result.append((parts[0][0], part if begins else num_bytes))
    assert result == expected
