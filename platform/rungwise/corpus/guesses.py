"""Guess from its beginning what a file holds: its kind, how lines make paragraphs, and what
separates documents."""

import codecs
import csv
import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.readers import streams

HEAD_BYTES = 200_000  # of a file, to see what it is
SAMPLE_RECORDS = 2000  # of a file
CODE_SUFFIXES = {
    *(".py", ".js", ".ts", ".java", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".rs", ".rb"),
    *(".php", ".sh", ".sql", ".scala", ".kt", ".swift", ".r", ".jl", ".lua", ".pl", ".hs"),
}
_BY_SUFFIX = {".parquet": "parquet", ".arrow": "arrow", ".wet": "warc", ".warc": "warc"}
_TABLES, _LINES_OF_JSON = (".csv", ".tsv"), (".jsonl", ".ndjson")
_WIKITEXT_TITLE = re.compile(r"(?m)^ = [^=\n]+ = $")
_MARKUP = re.compile(r"\s*(?:<(?:!doctype\b|\?xml\b)|\{\\rtf)", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]*)(?:\s[^<>]*)?>")
_WIKI = re.compile(r"\[\[[^\[\]]+\]\]|\{\{[^{}]+\}\}")
_JSON = re.compile(r"\s*(?:\[[\[\s]*[{\"]|\{\s*[\"'][^\"'\n]*[\"']\s*:)")
_SPAN = re.compile(r"[BIESMLU]-\S+")
_TAGGED, _BEGUN, _IN_COLUMNS = 0.05, 0.5, 0.98  # shares of lines
_FEWEST_ROWS = 20
_LINE_END = re.compile("[.!?\u3002\uff01\uff1f\u2026][\"')\\]\u201d\u2019\u300d\u300f]*\\s*$")
_SENTENCE_END = re.compile("[.!?](?=\\s)|[\u3002\uff01\uff1f]")


def guess_layout(text: str) -> str:
    """Guess the value of `lines` of a source."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return "wrapped"
    lengths = sorted(map(len, lines))
    ends = sum(bool(_LINE_END.search(line)) for line in lines) / len(lines)
    if lengths[len(lines) * 95 // 100] <= 100 and ends < 0.6 and lengths[len(lines) // 2] > 30:
        return "wrapped"
    inside = sum(len(_SENTENCE_END.findall(line.rstrip()[:-2])) for line in lines) / len(lines)
    return "sentence" if ends > 0.8 and inside < 0.25 else "paragraph"


def guess_separator(text: str, layout: str) -> str:
    """Guess what separates documents within a file, "" for nothing."""
    if layout == "wrapped":
        return ""
    parts = re.split(r"\n(?:[ \t]*\n)+", text)
    blocks = [part.splitlines() for part in parts if part.strip()]
    if len(blocks) >= 5 and statistics.mean(map(len, blocks)) >= 3:
        return "blank_line"
    lines = [line for line in text.split("\n") if line.strip()]
    indented = sum(line[0].isspace() for line in lines) / max(1, len(lines))
    short = sum(len(line) < 60 for line in lines) / max(1, len(lines))
    if layout == "paragraph" and len(lines) >= 20 and indented < 0.2 and short < 0.15:
        return "line"
    return ""


def plain_name(file: SourceFile) -> PurePosixPath:
    return PurePosixPath(file.name.removesuffix(streams.compression_suffix(file.name)))


def read_start(file: SourceFile, num_bytes: int) -> tuple[bytes, float]:
    """Return the beginning of a file and its share of the file; nothing of a damaged one."""
    try:
        return streams.read_start(file, num_bytes)
    except OSError:
        return b"", 1.0


def guess_kind(file: SourceFile) -> str:
    """Return the kind of a file by its content; of an archive, what it is; empty if it holds no
    text."""
    head, _ = read_start(file, HEAD_BYTES)
    suffix = plain_name(file).suffix.lower()
    if not head:
        return "damaged" if file.size_bytes else ""
    if streams.is_pointer(head):
        return "pointer"
    if kind := _BY_SUFFIX.get(suffix):
        return kind
    if (archive := streams.archive_kind(head)) or streams.is_binary(head):
        return archive
    if suffix in _TABLES:
        return "table"
    text = decode(head)[0]
    records = parse_records(text)
    is_long = suffix in _LINES_OF_JSON and "\n" not in text
    if all(isinstance(each, dict) for each in records) and (records or is_long):
        return "jsonl"
    if suffix in _LINES_OF_JSON or (records and "json" in suffix) or _JSON.match(text):
        return "json"
    if suffix not in CODE_SUFFIXES and (kind := _guess_lines(text)):
        return kind
    return "wikitext" if len(_WIKITEXT_TITLE.findall(text)) > 1 else "text"


def _guess_lines(text: str) -> str:
    """Return the kind of text whose lines are no prose: tagged, or in columns; or ""."""
    lines = [line for line in text.split("\n")[:-1] or [text] if line.strip()]
    tags = {(mark, name.lower()) for mark, name in _TAG.findall(text)}
    closed = any(("/", name) in tags for mark, name in tags if not mark)
    tagged = sum(bool((closed and _TAG.search(line)) or _WIKI.search(line)) for line in lines)
    opening = sum(bool(_TAG.match(line)) for line in lines)
    begins, number = closed and _TAG.match(text.lstrip()), max(1, len(lines))
    if _MARKUP.match(text) or begins or tagged >= _TAGGED * number or opening >= _BEGUN * number:
        return "markup"
    return "table" if any(_are_rows(lines, each) for each in ("\t", ",", ";", "|", None)) else ""


def _are_rows(lines: Sequence[str], separator: str | None) -> bool:
    """Whether nearly all lines have as many cells; between blanks, one column must be of tags."""
    rows = [line.split() for line in lines]
    if separator:
        try:
            rows = list(csv.reader(lines, delimiter=separator))
        except csv.Error:  # a text without line breaks is no cell
            return False
    width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
    least = 3 if separator in (",", ";") else 2  # each sentence may have one comma
    if len(rows) < _FEWEST_ROWS or width < least or count < _IN_COLUMNS * len(rows):
        return False
    columns = zip(*(row for row in rows if len(row) == width), strict=True)
    return bool(separator) or any(all(map(_is_tag, cells)) for cells in columns)


def _is_tag(cell: str) -> bool:
    """Whether a cell is no word: a number, a mark, or capitals such as NNP and B-location."""
    return bool(_SPAN.fullmatch(cell)) or all(one.isupper() or not one.isalpha() for one in cell)


def decode(head: bytes) -> tuple[str, str]:
    """Return the text of a sample, without a byte order mark, and its encoding."""
    encoding = streams.detect_encoding(head) or "latin-1"
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    return text.removeprefix("\ufeff"), encoding


def parse_records(text: str) -> list[Any]:
    """Return the values of lines of JSON; none if one is no JSON, but for the last, or a number."""
    records: list[Any] = []
    lines = [line for line in text.split("\n")[:SAMPLE_RECORDS] if line.strip()]
    for line in lines:
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            if line is not lines[-1]:
                return []
    return records if all(isinstance(each, dict | list | str) for each in records) else []
