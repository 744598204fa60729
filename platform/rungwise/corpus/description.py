"""Describe what files hold, from samples: format, layout, language, size.

    files ──> by name and first bytes: tables, archives, text ──> one `Seen` per kind

All figures are estimates from the beginnings of at most `_SAMPLED_FILES` files, for a draft recipe
that a person checks before it is run (commands/running/init.py).
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile, find_files, is_glob
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.boilerplate import gutenberg_text
from rungwise.corpus.readers.records import seekable

_SAMPLED_FILES, _SAMPLE_BYTES = 40, 200_000
_LARGEST_SAMPLE_BYTES = 8_000_000  # of all files together
# Language is detected in pieces; shorter texts are left out where there are longer ones.
_FEWEST_CHARACTERS, _PIECE_CHARACTERS = 200, 2000
_NEARLY_ALL, _UNCLEAR, _LANGUAGES_NAMED = 0.9, 0.3, 4
_LATIN = "Latin letters"
_SEEN_OFTEN = 3  # a third of the text may be held out
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".wet": "warc",
    ".warc": "warc",
}
_TABLES = (".csv", ".tsv")  # not prose
_CODE = {
    *(".py", ".js", ".ts", ".java", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".rs", ".rb"),
    *(".php", ".sh", ".sql", ".scala", ".kt", ".swift", ".r", ".jl", ".lua", ".pl", ".hs"),
}
_HAN = re.compile("[\u3400-\u9fff]")
_KANA, _HANGUL = re.compile("[\u3040-\u30ff]"), re.compile("[\uac00-\ud7a3]")
_WIKITEXT_TITLE = re.compile(r"(?m)^ = [^=\n]+ = $")
_ENDS = re.compile("[.!?\u3002\uff01\uff1f\u2026][\"')\\]\u201d\u2019\u300d\u300f]*\\s*$")
_SENTENCE_END = re.compile("[.!?](?=\\s)|[\u3002\uff01\uff1f]")
# The most frequent words of languages in Latin letters.
_COMMON = {
    "English": "the of and to in that is was it for",
    "German": "der die und das ist nicht ein zu den mit",
    "French": "le la les et des est une dans que pour",
    "Spanish": "el la los que y en una por con del",
    "Italian": "il che di e la un per non con sono",
    "Portuguese": "o que de e a os um para com n\u00e3o",
    "Dutch": "de het een en van is niet dat op te",
}


@dataclass(frozen=True)
class FileGroup:
    """The files of one kind. `source` holds the keys of a recipe's source besides kind and paths.
    `words` (counted by blanks), `characters` and `documents` are estimates for all files; `letters`
    and `frequent_words` count different ones in the sample."""

    kind: str
    paths: tuple[str, ...]
    files: int
    bytes: int
    language: str
    is_code: bool
    words: int
    characters: int
    documents: int
    letters: int
    frequent_words: int
    source: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def describe_files(paths: Sequence[str]) -> tuple[list[FileGroup], list[str]]:
    """Return the files below `paths` by kind, largest first, and counts of those without text.

    Raises ConfigError or DataError if nothing is there or a place cannot be reached.
    """
    by_kind: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    given: dict[str, str] = {}  # the path that a file is below
    passed_over: Counter[str] = Counter()
    for path in paths:
        for file in find_files(path):
            given[file.uri] = path
            name = PurePosixPath(file.name.removesuffix(streams.compression_suffix(file.name)))
            kind = _SUFFIXES.get(name.suffix.lower()) or _sniffed(file)
            if file.size_bytes and kind and name.suffix.lower() not in _TABLES:
                by_kind[kind][file.uri] = file
            else:
                passed_over[name.suffix or "without a suffix" if file.size_bytes else "empty"] += 1
    seen = []
    for kind, found in by_kind.items():
        files = list(found.values())
        whole = len(by_kind) == 1 and not passed_over
        chosen = list(paths) if whole else _globs(files, given)
        seen.append((_table if kind in ("jsonl", "parquet") else _text)(kind, files, chosen))
    others = [f"{count} {what}" for what, count in passed_over.most_common(5)]
    return sorted(seen, key=lambda each: -each.characters), others


def _globs(files: Sequence[SourceFile], given: dict[str, str]) -> list[str]:
    """Return globs by suffix for files of folders, and the names of other files."""
    globs = {path for path in set(given.values()) if is_glob(path)}
    patterns = dict[str, None]()
    for file in files:
        path, suffix = given[file.uri].rstrip("/"), "".join(PurePosixPath(file.name).suffixes[-2:])
        alone = given[file.uri] in globs or file.name == PurePosixPath(path).name
        patterns[file.uri if alone or not suffix else f"{path}/**/*{glob.escape(suffix)}"] = None
    return list(patterns)


def _sniffed(file: SourceFile) -> str:
    """Return the kind of a file by its content; empty if it holds no text."""
    head = _head(file)
    if not streams.detect_wide_encoding(file) and (not head or b"\0" in head):
        return ""
    text = _decoded(head)
    if head.lstrip().startswith(b"{") and _records(head):
        return "jsonl"
    return "wikitext" if len(_WIKITEXT_TITLE.findall(text)) > 1 else "text"


def _heads(files: Sequence[SourceFile]) -> dict[SourceFile, bytes]:
    chosen = _evenly(files)
    return {file: _head(file, _LARGEST_SAMPLE_BYTES // len(chosen)) for file in chosen}


def _head(file: SourceFile, most: int = _SAMPLE_BYTES) -> bytes:
    read = b""
    try:
        for piece in streams.read_pieces(file):
            read += piece
            if len(read) >= most:
                break
    except (streams.UnsoundError, OSError):
        pass
    if wide := streams.detect_wide_encoding(file):
        return read[: most // 4 * 4].decode(wide, "ignore").encode()
    return read[:most]


def _decoded(head: bytes) -> str:
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        if error.start > len(head) - 4:  # the sample ends within a character
            return head.decode(errors="ignore")
        return head.decode(streams.guess_encoding(head) or "latin-1", "replace")


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4
    return True


def _evenly(files: Sequence[SourceFile]) -> list[SourceFile]:
    step = max(1, len(files) // _SAMPLED_FILES)
    return sorted(files, key=lambda file: file.name)[::step][:_SAMPLED_FILES]


def _records(head: bytes) -> list[dict[str, Any]]:
    """Return the objects of whole lines; none if a line holds another type."""
    read = []
    for line in head.split(b"\n")[:2000]:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(record, dict):
            return []
        read.append(record)
    return read


def _table(kind: str, files: list[SourceFile], paths: list[str]) -> FileGroup:
    """Describe records; the field with the longest strings is taken for the text."""
    samples: list[dict[str, Any]] = []
    size = sum(map(streams.unpacked_bytes, files))
    if kind == "jsonl":
        for head in _heads(files).values():
            samples += _records(head)
    else:
        for file in _evenly(files):
            with _parquet(file) as table:
                for rows in itertools.islice(table.iter_batches(batch_size=2000), 1):
                    samples += rows.to_pylist()
    lengths: dict[str, list[int]] = defaultdict(list)
    for record in samples:
        for name, value in record.items():
            if isinstance(value, str):
                lengths[name].append(len(value))
    if not lengths:
        return FileGroup(kind, tuple(paths), len(files), size, "no text", False, 0, 0, 0, 0, 0)
    field_ = max(lengths, key=lambda name: sum(lengths[name]))
    texts = [record[field_] for record in samples if isinstance(record.get(field_), str)]
    record_bytes = statistics.mean(len(orjson.dumps(record, default=str)) for record in samples)
    documents = max(len(samples) if len(files) == 1 else 1, round(size / record_bytes))
    if kind == "parquet":
        documents = sum(_rows(file) for file in files)
    source = {"text_field": field_} if field_ != "text" else {}
    characters = round(documents * statistics.mean(map(len, texts)))
    words = round(documents * statistics.mean(len(text.split()) for text in texts))
    others = ", ".join(sorted(set(samples[0]) - {field_})) or "none"
    letters, frequent_words = _different(texts)
    return FileGroup(
        kind=kind,
        paths=tuple(paths),
        files=len(files),
        bytes=size,
        language=languages([(text, len(text)) for text in texts]),
        is_code=False,
        words=words,
        characters=characters,
        documents=documents,
        letters=letters,
        frequent_words=frequent_words,
        source=source,
        notes=(f"the text is the field {field_}; others: {others}",),
    )


def _rows(file: SourceFile) -> int:
    with _parquet(file) as table:
        return table.metadata.num_rows


@contextlib.contextmanager
def _parquet(file: SourceFile) -> Iterator[pq.ParquetFile]:
    try:
        with seekable(file) as stream:
            yield pq.ParquetFile(stream)
    except (pa.ArrowException, streams.UnsoundError, OSError) as error:
        raise DataError(
            f"cannot read {file.uri} as Parquet: {error}; mend the file or leave it out"
        ) from error


def _text(kind: str, files: list[SourceFile], paths: list[str]) -> FileGroup:
    heads = _heads(files)
    decoded = {file: _decoded(head).replace("\r\n", "\n") for file, head in heads.items() if head}
    texts = list(filter(None, decoded.values()))
    weights = [
        (text, streams.unpacked_bytes(file) / len(heads[file]) * len(text))
        for file, text in decoded.items()
    ]
    joined = "\n\n".join(texts)
    sampled_bytes = sum(map(len, heads.values()))
    size = sum(map(streams.unpacked_bytes, files))
    source: dict[str, Any] = {}
    notes: list[str] = []
    if not all(map(_is_utf8, heads.values())):
        source["encoding"] = "detect"
        notes.append("not all files are UTF-8: the encoding of each is guessed")
    suffixes = Counter(PurePosixPath(file.name).suffix.lower() for file in files)
    is_code = sum(suffixes[suffix] for suffix in _CODE) > len(files) / 2
    documents = len(files)
    per_byte = len(joined) / max(1, sampled_bytes)
    if kind == "text":
        layout = "sentence" if is_code else _lines(joined)
        in_sample = None if is_code else _documents_in(joined, layout)
        if in_sample:
            source |= {"documents": in_sample[0]}
            documents = max(1, round(in_sample[1] * size / max(1, sampled_bytes)))
        elif (
            not is_code
            and any(len(gutenberg_text(text)) < len(text) for text in texts)
            and len(files) > 3
        ):
            source |= {"boilerplate": "gutenberg"}
            notes.append("headers and licences of Project Gutenberg are taken out")
        elif len(files) < 4 or (len(files) < 20 and size / len(files) > 200_000):
            kilobytes = max(2, min(64, size // 40_000))
            documents = max(1, round(size / kilobytes / 1000))
            source |= {"documents": "chunk"} | (
                {"chunk_kilobytes": kilobytes} if kilobytes != 64 else {}
            )
            notes.append(f"few large files: each is cut into documents of about {kilobytes} kB")
        if layout != "wrapped":
            source["lines"] = layout
    elif kind == "wikitext":
        documents = max(
            1, round(len(_WIKITEXT_TITLE.findall(joined)) * size / max(1, sampled_bytes))
        )
    letters, frequent_words = _different(texts)
    return FileGroup(
        kind=kind,
        paths=tuple(paths),
        files=len(files),
        bytes=size,
        language="code" if is_code else languages(weights),
        is_code=is_code,
        words=round(len(joined.split()) / max(1, sampled_bytes) * size),
        characters=round(size * per_byte),
        documents=documents,
        letters=letters,
        frequent_words=frequent_words,
        source=source,
        notes=tuple(notes),
    )


def _different(texts: Sequence[str]) -> tuple[int, int]:
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.lower().split())
    return len(set().union(*words)), sum(count >= _SEEN_OFTEN for count in words.values())


def _lines(text: str) -> str:
    """Guess the value of `lines` of a source."""
    filled = [line for line in text.split("\n") if line.strip()]
    if not filled:
        return "wrapped"
    lengths = sorted(map(len, filled))
    ends = sum(bool(_ENDS.search(line)) for line in filled) / len(filled)
    if lengths[len(filled) * 95 // 100] <= 100 and ends < 0.6 and lengths[len(filled) // 2] > 30:
        return "wrapped"
    inside = sum(len(_SENTENCE_END.findall(line.rstrip()[:-2])) for line in filled) / len(filled)
    return "sentence" if ends > 0.8 and inside < 0.25 else "paragraph"


def _documents_in(text: str, layout: str) -> tuple[str, int] | None:
    """Guess the separator of documents within a file; also count those of this text."""
    if layout == "wrapped":
        return None
    blocks = [block.splitlines() for block in re.split(r"\n(?:[ \t]*\n)+", text) if block.strip()]
    if len(blocks) >= 5 and statistics.mean(map(len, blocks)) >= 3:
        return "blank_line", len(blocks)
    lines = [line for line in text.split("\n") if line.strip()]
    indented = sum(line[0].isspace() for line in lines) / max(1, len(lines))
    short = sum(len(line) < 60 for line in lines) / max(1, len(lines))
    if layout == "paragraph" and len(lines) >= 20 and indented < 0.2 and short < 0.15:
        return "line", len(lines)
    return None


def languages(texts: Sequence[tuple[str, float]]) -> str:
    """Return the language of weighted texts, or the shares of several if none dominates."""
    long = [each for each in texts if len(each[0]) >= _FEWEST_CHARACTERS]
    shares: dict[str, float] = defaultdict(float)
    for text, weight in long or [("\n".join(text for text, _ in texts), 1.0)]:
        for begin in range(0, len(text), _PIECE_CHARACTERS):
            piece = text[begin : begin + _PIECE_CHARACTERS]
            shares[language(piece)] += weight * len(piece) / len(text)
    if 0 < shares.get(_LATIN, 0.0) < _UNCLEAR * sum(shares.values()):
        del shares[_LATIN]  # pieces with too few words to tell
    most = sorted(shares, key=lambda name: -shares[name])[:_LANGUAGES_NAMED]
    total = sum(shares.values())
    if not most or shares[most[0]] >= _NEARLY_ALL * total:
        return most[0] if most else "no text"
    named = [f"{shares[name] / total:.0%} {name}" for name in most if shares[name] > 0.005 * total]
    return f"mixed languages ({', '.join(named)})"


def language(text: str) -> str:
    """Guess the language or script of a text by its letters and most frequent words."""
    letters = sum(map(str.isalpha, text)) or 1
    han, kana, hangul = (len(each.findall(text)) for each in (_HAN, _KANA, _HANGUL))
    if kana / letters > 0.1:
        return "Japanese"
    if hangul / letters > 0.3:
        return "Korean"
    if han / letters > 0.3:
        return "Chinese"
    words = Counter(text.lower().split())
    total = sum(words.values()) or 1
    shares = {
        name: sum(words[word] for word in common.split()) / total
        for name, common in _COMMON.items()
    }
    best = max(shares, key=lambda name: shares[name])
    if shares[best] > 0.08:
        return best
    latin = sum(letter.isascii() and letter.isalpha() for letter in text) / letters
    return _LATIN if latin > 0.7 else "letters other than Latin"
