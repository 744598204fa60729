"""Describe what files hold, from samples: format, layout, language, size.

A sample is read, cleaned and split by the steps of the corpus stage, so that its counts are those
of a run; for more text they are estimates."""

import csv
import glob
import json
import re
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError, explain_connection_errors, format_count
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import (
    Member,
    SourceFile,
    data_files,
    find_files,
    split_of_path,
)
from rungwise.corpus.building.range_builder import read_range
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.cleaning.text import describe_lost_characters, guess_language
from rungwise.corpus.config import CorpusConfig, DocumentRules, Range
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers import streams
from rungwise.corpus.readers.documents import decode_rows, gutenberg_text
from rungwise.corpus.readers.file_reader import plain_breaks
from rungwise.corpus.summary import CorpusSummary

_HEAD_BYTES = 200_000  # of a file, to see what it is
_SAMPLE_RECORDS = 2000  # of a file
_CODE_SUFFIXES = {
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


def _guess_layout(text: str) -> str:
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


def _guess_separator(text: str, layout: str) -> str:
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


def _plain_name(file: SourceFile) -> PurePosixPath:
    return PurePosixPath(file.name.removesuffix(streams.compression_suffix(file.name)))


def read_start(file: SourceFile, num_bytes: int) -> tuple[bytes, float]:
    """Return the beginning of a file and its share of the file; nothing of a damaged one."""
    try:
        return streams.read_start(file, num_bytes)
    except OSError:
        return b"", 1.0


def _guess_kind(file: SourceFile) -> str:
    """Return the kind of a file by its content; of an archive, what it is; empty if it holds no
    text."""
    head, _ = read_start(file, _HEAD_BYTES)
    suffix = _plain_name(file).suffix.lower()
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
    text = streams.decode(head)[0]
    records = _parse_records(text)
    is_long = suffix in _LINES_OF_JSON and "\n" not in text
    if all(isinstance(each, dict) for each in records) and (records or is_long):
        return "jsonl"
    if suffix in _LINES_OF_JSON or (records and "json" in suffix) or _JSON.match(text):
        return "json"
    if suffix not in _CODE_SUFFIXES and (kind := _guess_lines(text)):
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


def _parse_records(text: str) -> list[Any]:
    """Return the values of lines of JSON; none if one is no JSON, but for the last, or a number."""
    records: list[Any] = []
    lines = [line for line in text.split("\n")[:_SAMPLE_RECORDS] if line.strip()]
    for line in lines:
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            if line is not lines[-1]:
                return []
    return records if all(isinstance(each, dict | list | str) for each in records) else []


_SAMPLE_BYTES = 8_000_000  # read of the files of a kind
_FEWEST_FILES = 40  # that are looked at, if there are as many
_LANGUAGE_CHARACTERS = 2_000_000  # to tell a language by
_MOST_GLOBS = 8  # of a group of files
_FREQUENT = 3  # a third of the text may be held out
_SEPARATED = {"blank_line": "a block of lines between blank lines", "line": "a line"}

_RECORDS = ("jsonl", "parquet")
_READ = ("text", "wikitext", *_RECORDS, "warc")

# Files that hold text, or stand for it, in a form that no source reads; and what to do with them.
_ADVICE = {
    "pointer": "that stand for data elsewhere, such as pointers of Git LFS: fetch the data, for "
    "example by `git lfs pull`",
    "markup": "of HTML, XML or other tagged text, whose tags are no text: extract it, for example "
    "by trafilatura, or a Wikipedia's by `wikiextractor --json`",
    "json": "of JSON that is not one object a line: write it so, for example by "
    "`jq -c '.[]' FILE > FILE.jsonl` for an array of objects, `jq -c . FILE > FILE.jsonl` for "
    "objects and `jq -c '.[] | {text: .}' FILE > FILE.jsonl` for an array of strings",
    "nested": "of records whose text is inside of lists or objects, such as chats: write it to one "
    "field, for "
    r"""example by `jq -c '{text: ([.messages[].content] | join("\n"))}' FILE > FILE.jsonl`""",
    "arrow": "of Arrow: write a source for them, `{kind: arrow, paths: [FILE], text_field: NAME}`",
    "table": "of tables or of words in columns: write the text alone, or give --labels to "
    "fine-tune on the labels in them",
    "damaged": "of a packed form by their names, and not by their content: fetch or rename them",
    "about": "about the others, such as a README or a licence: name it to read it",
    "held_out": "named as validation or test, beside files to train on: name it to read it",
}

_ABOUT = re.compile(
    r"(?:readme|licen[cs]e|copying|notice|citation|changelog|contributing|authors)(?:\W.*)?",
    re.IGNORECASE,
)


@dataclass
class FileGroup:
    """The files of one kind. `source` holds the keys of a recipe's source besides kind and paths.
    `words` (counted by blanks), `characters` and `documents` are of all files, estimated from the
    documents of `sample`, of which they have `times` as many; `letters` and `frequent_words` count
    different ones in it."""

    kind: str
    paths: tuple[str, ...]
    files: int
    bytes: int = 0
    is_code: bool = False
    language: str = "no text"
    words: int = 0
    characters: int = 0
    documents: int = 0
    letters: int = 0
    frequent_words: int = 0
    source: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sample: list[RawDocument] = field(default_factory=list)
    times: float = 1.0

    def count_documents(self, held_out_fraction: float) -> None:
        """Estimate the documents anew, since long ones may be cut to hold this fraction out."""
        self.documents = round(self.times * self.write_sample(held_out_fraction).documents.total)

    def write_sample(self, held_out_fraction: float) -> CorpusSummary:
        """Make a corpus of the sample; return its summary."""
        with tempfile.TemporaryDirectory() as folder:
            rules = DocumentRules(held_out_fraction=held_out_fraction)
            return write_corpus([self.sample], rules, self.kind, Folder.at(f"{folder}/sample"))


@dataclass(frozen=True)
class _Sample:
    """The beginning of a file, as text or as rows; and how many bytes of the file hold it."""

    file: SourceFile
    bytes: float
    rows: list[dict[str, Any]]


def describe_files(paths: Sequence[str]) -> tuple[list[FileGroup], list[str]]:
    """Return the files below `paths` by kind, largest first, and what is not read of the others.
    Raises ConfigError or DataError if nothing is there or a place cannot be reached."""
    files: dict[str, list[SourceFile]] = {}
    by_kind: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    for path in paths:
        with explain_connection_errors(path, "the path"):
            files[path] = data_files(find_files(path))
            for file in files[path]:
                by_kind[_guess_kind(file)][file.uri] = file
    _set_aside(by_kind)
    groups = []
    for kind in [kind for kind in by_kind if kind in _READ]:
        if group := _describe_group(kind, [*by_kind[kind].values()]):
            group.paths = tuple(_list_patterns(files, by_kind[kind]))
            groups.append(group)
        else:
            by_kind["nested"] |= by_kind.pop(kind)
    others = [
        f"{format_count(len(by_kind[kind]), 'file')} {advice}"
        for kind, advice in _ADVICE.items()
        if kind in by_kind
    ]
    least = f"without a document of {DocumentRules().minimum_characters} characters"
    empty = [group for group in groups if not group.documents]
    others += [f"{format_count(each.files, 'file')} of {each.kind} {least}" for each in empty]
    archives = [kind for kind in by_kind if kind and kind not in (*_READ, *_ADVICE)]
    others += [f"{format_count(len(by_kind[kind]), 'file')}, {kind}" for kind in archives]
    suffixes = Counter(
        f"binary {_plain_name(file).suffix or 'without a suffix'}" if file.size_bytes else "empty"
        for file in by_kind[""].values()
    )
    others += [f"{count} {suffix}" for suffix, count in suffixes.most_common(5)]
    groups = [group for group in groups if group.documents]
    return sorted(groups, key=lambda group: -group.characters), others


def _set_aside(by_kind: dict[str, dict[str, SourceFile]]) -> None:
    """Move files about the others, and parts held out beside a part to train on, to own kinds."""
    texts = [file for kind in _READ for file in by_kind.get(kind, {}).values()]
    kinds = {file.uri: "about" for file in texts if _ABOUT.fullmatch(_plain_name(file).name)}
    if len(kinds) == len(texts):  # there is nothing else
        kinds = {}
    splits = {file.uri: split_of_path(file.name) for file in texts if file.uri not in kinds}
    if "train" in splits.values():
        kinds |= {uri: "held_out" for uri, split in splits.items() if split not in ("", "train")}
    for file in texts:
        if file.uri in kinds:
            by_kind[kinds[file.uri]][file.uri] = file
    for kind in [kind for kind in by_kind if kind in _READ]:
        rest = {uri: file for uri, file in by_kind.pop(kind).items() if uri not in kinds}
        by_kind |= {kind: rest} if rest else {}


def _list_patterns(files: Mapping[str, Sequence[SourceFile]], group: Collection[str]) -> list[str]:
    """Return patterns that match the files of a group and no others: the path itself, globs by
    suffix or by names with any number, or else the files."""
    patterns: list[str] = []
    for path, below in files.items():
        uris = {file.uri: file.name for file in below if file.uri in group}
        folder = path.rstrip("/")
        suffixes = {"".join(PurePosixPath(name).suffixes[-2:]): None for name in uris.values()}
        names = {re.sub(r"\d+", "*", glob.escape(name)): None for name in uris.values()}
        choices = (
            [path],
            [f"{folder}/**/*{glob.escape(suffix)}" for suffix in suffixes],
            [f"{folder}/{name}" for name in names],
        )
        for choice in [each for each in choices if uris and len(each) <= _MOST_GLOBS]:
            if {file.uri for each in choice for file in data_files(find_files(each))} == {*uris}:
                patterns += choice
                break
        else:
            patterns += uris
    return patterns


def _take_samples(kind: str, files: Sequence[SourceFile]) -> list[_Sample]:
    """Take files from all over, the small ones whole, and of the others the beginning."""
    unpacked = sum(map(streams.estimate_unpacked_bytes, files))
    step = min(-(-unpacked // _SAMPLE_BYTES), len(files) // _FEWEST_FILES)
    spread = sorted(files, key=lambda file: file.name)[:: max(1, step)]
    if kind == "parquet":
        return _read_tables(spread[:_FEWEST_FILES])
    samples, rest = [], _SAMPLE_BYTES
    for number, file in enumerate(sorted(spread, key=lambda file: file.size_bytes)):
        content, share = read_start(file, rest // (len(spread) - number))
        if share < 1 and not streams.wide_encoding(content):
            end = content.rfind(b"\n") + 1 or content.rfind(b" ") + 1 or len(content)
            content, share = content[:end], share * end / len(content)
        name = file.uri
        if suffix := streams.compression_suffix(name):  # a.txt.gz may stand beside a.txt.xz
            name = f"{name}/{name.rpartition('/')[2].removesuffix(suffix)}"
        part = Member(name, name, len(content), content=content)
        samples.append(_Sample(part, share * file.size_bytes, []))
        rest -= len(content)
    return samples


def _read_tables(files: Sequence[SourceFile]) -> list[_Sample]:
    """Return Parquet files with their first rows, none of a damaged file, which a run skips too.
    Raises DataError if all are damaged."""
    samples, faults = [], []
    for file in files:
        rows, share = list[dict[str, Any]](), 1.0
        try:
            with file.open() as stream, pq.ParquetFile(stream) as table:
                batch = next(table.iter_batches(_SAMPLE_RECORDS), None)
                records = decode_rows(batch) if batch else ()
                rows = [record for record in records if isinstance(record, dict)]
                share = len(rows) / max(1, table.metadata.num_rows) or 1.0
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # of the disk or the store
            faults.append(
                f"cannot read {file.uri} as Parquet: {error}; mend the file or leave it out"
            )
        samples.append(_Sample(replace(file, name=file.uri), share * file.size_bytes, rows))
    if len(faults) == len(files):
        raise DataError(faults[0])
    return samples


def _describe_group(kind: str, files: Sequence[SourceFile]) -> FileGroup | None:
    """Describe the files of a kind; None if they are records whose text is inside of lists."""
    samples = _take_samples(kind, files)
    scale = sum(file.size_bytes for file in files) / max(1.0, sum(each.bytes for each in samples))
    unpacked = sum(sample.file.size_bytes for sample in samples)
    group = FileGroup(kind, (), len(files), round(scale * unpacked))
    if kind in _RECORDS and not _choose_field(group, samples):
        return None
    heads = (streams.read_head(sample.file, _SAMPLE_BYTES) for sample in samples)
    contents = [head for head in heads if head]
    if kind != "parquet":
        _choose_encoding(group, contents)
    if kind == "text":
        suffixes = Counter(_plain_name(file).suffix.lower() for file in files)
        group.is_code = sum(suffixes[suffix] for suffix in _CODE_SUFFIXES) > len(files) / 2
        _choose_layout(group, contents)
    _count(group, samples, scale)
    return group


def _count(group: FileGroup, samples: Sequence[_Sample], scale: float) -> None:
    """Read the samples as the corpus stage does, and estimate what all files hold, whose size is
    `scale` times theirs."""
    config = validate(
        CorpusConfig, {"sources": [{"kind": group.kind, "paths": ["-"], **group.source}]}
    )
    for sample in samples:
        documents = read_range(Range(0, 0, (sample.file,)), config)
        group.sample += islice(documents, len(sample.rows) or None)
    texts = ["\n".join(document.paragraphs) for document in group.sample]
    words = Counter(word for text in texts for word in text.lower().split())
    if not words:
        return
    summary = group.write_sample(DocumentRules().held_out_fraction)
    group.words = round(scale * summary.words.total)
    group.characters = round(scale * summary.characters.total)
    is_file = group.kind == "text" and "documents" not in group.source
    group.times = group.files / len(samples) if is_file else scale
    group.documents = round(group.times * summary.documents.total)
    joined = "\n".join(texts)[:_LANGUAGE_CHARACTERS]
    group.language = "code" if group.is_code else guess_language(joined)
    group.letters = len(set().union(*words))
    group.frequent_words = sum(count >= _FREQUENT for count in words.values())
    if removed := summary.characters_removed:
        group.notes.append(f"without {format_count(removed, 'unreadable character')} of the sample")
    group.notes += describe_lost_characters(joined)
    if damaged := sum(document.damage is not None for document in group.sample):
        group.notes.append(f"{format_count(damaged, 'part')} of the sample cannot be read")


def _choose_field(group: FileGroup, samples: Sequence[_Sample]) -> bool:
    """Take the field with the longest strings for the text; False if text is inside of others."""
    heads = (streams.read_head(sample.file, _SAMPLE_BYTES) for sample in samples)
    records = [row for sample in samples for row in sample.rows] or [
        record for head in heads for record in _parse_records(streams.decode(head)[0])
    ]
    characters: Counter[str] = Counter()
    inside = 0
    for record in records:
        for name, value in record.items():
            size = sum(map(len, _strings(value)))
            characters[name] += size if isinstance(value, str) else 0
            inside += 0 if isinstance(value, str) else size
    text_field = max(characters, key=lambda name: characters[name], default="text")
    if inside > characters[text_field]:
        return False
    group.source = {"text_field": text_field} if text_field != "text" else {}
    others = ", ".join(sorted({*characters} - {text_field})) or "none"
    group.notes = [f"the text is the field {text_field}; others: {others}"]
    return True


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _choose_encoding(group: FileGroup, samples: Sequence[bytes]) -> None:
    """Choose the encoding of a source, by samples of files, and note it."""
    # One byte far from the beginning may tell.
    encodings = Counter(streams.decode(content)[1] for content in samples)
    if set(encodings) - {"utf-8"}:
        group.source["encoding"] = "detect"
        counts = ", ".join(f"{count} {name}" for name, count in encodings.most_common())
        group.notes.append(
            f"not all files are UTF-8 ({counts} of {len(samples)} looked at): each is detected"
        )


def _choose_layout(group: FileGroup, samples: Sequence[bytes]) -> None:
    """Choose the keys of a source of text, by samples of files, and note them."""
    heads = (streams.decode(content[:_HEAD_BYTES])[0] for content in samples)
    texts = [plain_breaks(text) for text in heads if text]
    joined = "\n\n".join(texts)
    layout = "sentence" if group.is_code else _guess_layout(joined)
    if layout != "wrapped":
        group.source["lines"] = layout
    # Of many files, each is a document, whatever stands between its paragraphs.
    few = group.files < 4 or (group.files < 20 and group.bytes / group.files > 200_000)
    separator = "" if group.is_code or not few else _guess_separator(joined, layout)
    document = "a file"
    if separator:
        group.source["documents"] = separator
        document = _SEPARATED[separator]
    elif few:
        kilobytes = max(2, min(64, group.bytes // 40_000))
        group.source["documents"] = "chunk"
        if kilobytes != 64:
            group.source["chunk_kilobytes"] = kilobytes
        document = f"about {kilobytes} kB of a file"
    group.notes.append(f"a document is {document}; `documents` of the source decides")
    if not separator and any(len(gutenberg_text(text)) < len(text) for text in texts):
        group.source["boilerplate"] = "gutenberg"
        group.notes.append("headers and licences of Project Gutenberg are taken out")
