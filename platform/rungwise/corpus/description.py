"""Describe what files hold, from samples: format, layout, language, size.

    files ──> by name and first bytes: tables, archives, text ──> one `FileGroup` per kind

All figures are estimates from the beginnings of at most `_SAMPLED_FILES` files, for a draft recipe
that a person checks before it is run (commands/init.py).
"""

import codecs
import contextlib
import glob
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile, data_files, find_files, is_glob
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.core.wording import format_count
from rungwise.corpus.cleaning.quality import count_marked
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.file_reader import plain_breaks
from rungwise.corpus.readers.records import open_arrow
from rungwise.corpus.readers.streams import archive_kind, detect_encoding, wide_encoding
from rungwise.corpus.readers.text import gutenberg_text
from rungwise.corpus.summary import count_units

_LINE_END = re.compile("[.!?\u3002\uff01\uff1f\u2026][\"')\\]\u201d\u2019\u300d\u300f]*\\s*$")
_SENTENCE_END = re.compile("[.!?](?=\\s)|[\u3002\uff01\uff1f]")
# Scripts, and the least share of letters that shows them; Japanese first, as it also writes Han.
_SCRIPTS = {
    "Japanese": (re.compile("[\u3040-\u30ff]"), 0.1),
    "Korean": (re.compile("[\uac00-\ud7a3]"), 0.3),
    "Chinese": (re.compile("[\u3400-\u9fff]"), 0.3),
}
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


def split_documents(text: str, separator: str) -> list[str]:
    pattern = r"\n(?:[ \t]*\n)+" if separator == "blank_line" else r"\n"
    return [part for part in re.split(pattern, text) if part.strip()]


def guess_separator(text: str, layout: str) -> str:
    """Guess what separates documents within a file, "" for nothing."""
    if layout == "wrapped":
        return ""
    blocks = [block.splitlines() for block in split_documents(text, "blank_line")]
    if len(blocks) >= 5 and statistics.mean(map(len, blocks)) >= 3:
        return "blank_line"
    lines = split_documents(text, "line")
    indented = sum(line[0].isspace() for line in lines) / max(1, len(lines))
    short = sum(len(line) < 60 for line in lines) / max(1, len(lines))
    if layout == "paragraph" and len(lines) >= 20 and indented < 0.2 and short < 0.15:
        return "line"
    return ""


def language(text: str) -> str:
    """Guess the language or script of a text by its letters and most frequent words."""
    letters = sum(map(str.isalpha, text)) or 1
    for name, (pattern, share) in _SCRIPTS.items():
        if len(pattern.findall(text)) / letters > share:
            return name
    words = Counter(text.lower().split())
    counts = {name: sum(words[word] for word in common.split()) for name, common in _COMMON.items()}
    best = max(counts, key=lambda name: counts[name])
    if counts[best] / (words.total() or 1) > 0.08:
        return best
    latin = sum(letter.isascii() and letter.isalpha() for letter in text) / letters
    return "Latin letters" if latin > 0.7 else "letters other than Latin"


_SAMPLED_FILES, _SAMPLE_BYTES, _SAMPLE_RECORDS = 40, 200_000, 2000
_LARGEST_SAMPLE_BYTES = 8_000_000  # of all files together
_FREQUENT = 3  # a third of the text may be held out
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".wet": "warc",
    ".warc": "warc",
}
_TABLES = (".csv", ".tsv")  # not prose
_SEPARATED = {"blank_line": "a block of lines between blank lines", "line": "a line"}
# Kinds of files with text that no source reads, and what to do with them.
_MARKUP = re.compile(r"\s*<(?:!doctype\b|html\b|\?xml\b|mediawiki\b|head\b|body\b)", re.IGNORECASE)
_JSON = re.compile(r"\s*(?:\[[\[\s]*[{\"]|\{\s*\"[^\"\n]*\"\s*:)")
_ADVICE = {
    "html": "of HTML or XML, whose tags are no text: extract it, for example by trafilatura",
    "json": "of JSON that is not one object a line: write it so, for example by "
    "`jq -c '.[]' FILE > FILE.jsonl` for an array and `jq -c . FILE > FILE.jsonl` for objects",
}
_CODE = {
    *(".py", ".js", ".ts", ".java", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".rs", ".rb"),
    *(".php", ".sh", ".sql", ".scala", ".kt", ".swift", ".r", ".jl", ".lua", ".pl", ".hs"),
}
_WIKITEXT_TITLE = re.compile(r"(?m)^ = [^=\n]+ = $")


@dataclass
class FileGroup:
    """The files of one kind. `source` holds the keys of a recipe's source besides kind and paths.
    `words` (counted by blanks), `characters` and `documents` are estimates for all files; `letters`
    and `frequent_words` count different ones in the sample."""

    kind: str
    paths: tuple[str, ...]
    files: int
    bytes: int
    is_code: bool = False
    language: str = "no text"
    words: int = 0
    characters: int = 0
    documents: int = 0
    letters: int = 0
    frequent_words: int = 0
    has_accents: bool = False  # in so many words that they belong to the spelling
    source: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def describe_files(paths: Sequence[str]) -> tuple[list[FileGroup], list[str]]:
    """Return the files below `paths` by kind, largest first, and counts of those without text.

    Raises ConfigError or DataError if nothing is there or a place cannot be reached.
    """
    by_kind: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    parents: dict[str, str] = {}  # the path that a file is below
    ignored: Counter[str] = Counter()
    advised: Counter[str] = Counter()
    for path in paths:
        with explain_connection_errors(path, "the path"):
            files = data_files(find_files(path))
        for file in files:
            parents[file.uri] = path
            name = PurePosixPath(file.name.removesuffix(streams.compression_suffix(file.name)))
            kind = _SUFFIXES.get(name.suffix.lower()) or _guess_kind(file)
            if kind in _ADVICE:
                advised[kind] += 1
            elif file.size_bytes and kind and name.suffix.lower() not in _TABLES:
                by_kind[kind][file.uri] = file
            else:
                ignored[name.suffix or "without a suffix" if file.size_bytes else "empty"] += 1
    groups = []
    for kind, files in by_kind.items():
        whole = len(by_kind) == 1 and not ignored and not advised
        patterns = list(paths) if whole else _globs(list(files.values()), parents)
        groups.append(_describe_group(kind, list(files.values()), patterns))
    others = [f"{format_count(count, 'file')} {_ADVICE[kind]}" for kind, count in advised.items()]
    others += [f"{count} {suffix}" for suffix, count in ignored.most_common(5)]
    return sorted(groups, key=lambda group: -group.characters), others


def _globs(files: Sequence[SourceFile], parents: dict[str, str]) -> list[str]:
    """Return globs by suffix for files of folders, and the names of other files."""
    patterns = dict[str, None]()
    for file in files:
        path, suffixes = parents[file.uri], PurePosixPath(file.name).suffixes[-2:]
        alone = is_glob(path) or file.name == PurePosixPath(path).name
        pattern = f"{path.rstrip('/')}/**/*{glob.escape(''.join(suffixes))}"
        patterns[file.uri if alone or not suffixes else pattern] = None
    return list(patterns)


def _describe_group(kind: str, files: list[SourceFile], paths: list[str]) -> FileGroup:
    group = FileGroup(
        kind, tuple(paths), len(files), sum(map(streams.estimate_unpacked_bytes, files))
    )
    if kind in ("jsonl", "parquet", "arrow"):
        texts = _estimate_records(group, files)
    else:
        suffixes = Counter(PurePosixPath(file.name).suffix.lower() for file in files)
        group.is_code = sum(suffixes[suffix] for suffix in _CODE) > len(files) / 2
        texts = _estimate_text(group, files)
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.lower().split())
    group.letters = len(set().union(*words))
    group.frequent_words = sum(count >= _FREQUENT for count in words.values())
    has_words = count_units(group.words, group.characters)[1] == "words"
    group.has_accents = (marked := count_marked(words)).matters and has_words
    if group.has_accents:
        group.notes.append(
            f"{marked.share:.0%} of the words have accents or other marks ({marked.example}), which"
            " stay (tokenizer.strip_accents)"
        )
    return group


def _guess_kind(file: SourceFile) -> str:
    """Return the kind of a file by its content; empty if it holds no text."""
    head = _read_head(file)
    if not head or archive_kind(head) or (b"\0" in head and not wide_encoding(head)):
        return ""
    if head.lstrip().startswith(b"{") and _parse_records(head):
        return "jsonl"
    text = _decode(head)[0].removeprefix("\ufeff")
    if _MARKUP.match(text):
        return "html"
    if _JSON.match(text):
        return "json"
    return "wikitext" if len(_WIKITEXT_TITLE.findall(text)) > 1 else "text"


def _read_heads(files: Sequence[SourceFile]) -> list[bytes]:
    sample = _sample_files(files)
    return [_read_head(file, _LARGEST_SAMPLE_BYTES // len(sample)) for file in sample]


def _read_head(file: SourceFile, num_bytes: int = _SAMPLE_BYTES) -> bytes:
    head = b""
    with contextlib.suppress(OSError):
        head = streams.read_head(file, num_bytes)
    return head


def _decode(head: bytes) -> tuple[str, str]:
    """Return the text of a sample, and its encoding."""
    encoding = detect_encoding(head) or "latin-1"
    return codecs.getincrementaldecoder(encoding)("replace").decode(head), encoding


def _sample_files(files: Sequence[SourceFile]) -> list[SourceFile]:
    step = max(1, len(files) // _SAMPLED_FILES)
    return sorted(files, key=lambda file: file.name)[::step][:_SAMPLED_FILES]


def _parse_records(head: bytes) -> list[dict[str, Any]]:
    """Return the objects of whole lines; none if a line holds another type."""
    records = []
    for line in head.split(b"\n")[:_SAMPLE_RECORDS]:
        with contextlib.suppress(ValueError, RecursionError):
            records.append(json.loads(line))
    return records if all(isinstance(record, dict) for record in records) else []


def _estimate_records(group: FileGroup, files: list[SourceFile]) -> list[str]:
    """Estimate the sizes of records from a sample, and return its texts.

    The field with the longest strings is taken for the text.
    """
    if group.kind == "jsonl":
        records = [row for head in _read_heads(files) for row in _parse_records(head)]
    else:
        records = [row for file in _sample_files(files) for row in _first_rows(file, group.kind)]
    characters: Counter[str] = Counter()
    for record in records:
        characters.update({key: len(value) for key, value in record.items() if type(value) is str})
    if not characters:
        return []
    text_field = max(characters, key=lambda name: characters[name])
    texts = [record[text_field] for record in records if isinstance(record.get(text_field), str)]
    record_bytes = statistics.mean(map(_record_bytes, records))
    fewest = len(records) if len(files) == 1 else 1
    group.documents = max(fewest, round(group.bytes / record_bytes))
    if group.kind == "parquet":
        group.documents = 0
        for file in files:
            with _open_table(file, group.kind) as table:
                group.documents += table.metadata.num_rows
    group.words = round(group.documents * statistics.mean(len(text.split()) for text in texts))
    group.characters = round(group.documents * statistics.mean(map(len, texts)))
    group.language = language("\n".join(texts))
    group.source = {"text_field": text_field} if text_field != "text" else {}
    others = ", ".join(sorted(set(records[0]) - {text_field})) or "none"
    group.notes = [f"the text is the field {text_field}; others: {others}"]
    return texts


def _record_bytes(record: dict[str, Any]) -> int:
    text = json.dumps(record, default=str, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "surrogatepass"))


def _first_rows(file: SourceFile, kind: str) -> list[dict[str, Any]]:
    with _open_table(file, kind) as table:
        batches = table.iter_batches(_SAMPLE_RECORDS) if kind == "parquet" else iter(table)
        first = next(batches, None)
        return [] if first is None else first.slice(0, _SAMPLE_RECORDS).to_pylist()


@contextlib.contextmanager
def _open_table(file: SourceFile, kind: str) -> Iterator[Any]:
    """Open a Parquet file, or the record batches of an Arrow file."""
    try:
        if kind == "parquet":
            with file.open() as stream:
                yield pq.ParquetFile(stream)
        else:
            with open_arrow(file) as stream, pa.ipc.open_stream(stream) as batches:
                yield batches
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"cannot read {file.uri} as {kind.title()}: {error}; mend the file or leave it out"
        ) from error


def _estimate_text(group: FileGroup, files: list[SourceFile]) -> list[str]:
    """Estimate the sizes and the layout of text files from a sample, and return its texts."""
    heads = list(filter(None, _read_heads(files)))
    samples = [_decode(head) for head in heads]
    texts = [plain_breaks(text) for text, _ in samples]
    joined = "\n\n".join(filter(None, texts))
    scale = group.bytes / max(1, sum(map(len, heads)))
    group.documents = len(files)
    group.words = round(len(joined.split()) * scale)
    group.characters = round(len(joined) * scale)
    group.language = "code" if group.is_code else language(joined)
    encodings = Counter(encoding for _, encoding in samples)
    if set(encodings) - {"utf-8"}:
        group.source["encoding"] = "detect"
        counts = ", ".join(f"{count} {name}" for name, count in encodings.most_common())
        group.notes.append(
            f"not all files are UTF-8 ({counts} of {len(samples)} looked at): each is detected"
        )
    if group.kind == "wikitext":
        group.documents = max(1, round(len(_WIKITEXT_TITLE.findall(joined)) * scale))
    elif group.kind == "text":
        layout = "sentence" if group.is_code else guess_layout(joined)
        if layout != "wrapped":
            group.source["lines"] = layout
        _choose_documents(group, layout, texts, scale)
    return list(filter(None, texts))


def _choose_documents(group: FileGroup, layout: str, texts: Sequence[str], scale: float) -> None:
    """Choose what a document is, and note it; `texts` are beginnings of files, `scale` is how much
    text there is for one of theirs."""
    # Of many files, each is a document, whatever stands between its paragraphs.
    few = group.files < 4 or (group.files < 20 and group.bytes / group.files > 200_000)
    separator = "" if group.is_code or not few else guess_separator("\n\n".join(texts), layout)
    document = "a file"
    if separator:
        group.source["documents"] = separator
        samples = [part for text in texts for part in split_documents(text, separator)]
        group.documents = max(1, round(len(samples) * scale))
        document = _SEPARATED[separator]
    elif few:
        kilobytes = max(2, min(64, group.bytes // 40_000))
        group.documents = max(1, round(group.bytes / kilobytes / 1000))
        group.source["documents"] = "chunk"
        if kilobytes != 64:
            group.source["chunk_kilobytes"] = kilobytes
        document = f"about {kilobytes} kB of a file"
    group.notes.append(f"a document is {document}; `documents` of the source decides")
    if not separator and any(len(gutenberg_text(text)) < len(text) for text in texts):
        group.source["boilerplate"] = "gutenberg"
        group.notes.append("headers and licences of Project Gutenberg are taken out")
