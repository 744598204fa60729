"""The summary of a corpus artifact, the reports of ranges that add up to it, and the stage."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, TypeAdapter

from rungwise.core.errors import format_count
from rungwise.core.stages.artifact import Artifact, PerSplit, Summary, SummaryPart, find_input
from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.corpus.config import identity, input_digests
from rungwise.corpus.document import Document, DocumentDamage, read_documents

CORPORA = ("corpus", "task_text")  # the stages that make a corpus
OF_A_TASK = "text of a task, without its labels"
SPLITS = ("train", "validation")
_SAMPLES = 3  # dropped documents of each reason
_SAMPLE_CHARACTERS = 80
_MOST_LABELS = 100
_MOST_SKIPPED = 20
_SHARE_TOLERANCE = 0.2
_LONGEST_WORDS = 12  # in the mean, with a blank (German: 7); above, blanks do not separate words
_UNITS = ("documents", "sentences", "words", "characters", "bytes")
_COUNTS = (
    *("skipped_parts", "skipped_bytes", "repeated_bytes"),
    *("characters_removed", "characters_replaced"),
)


class CorpusFile(SummaryPart):
    """One file of documents, the name of its source, and its size in each unit."""

    file: str
    split: str
    source: str
    documents: int
    sentences: int
    words: int
    characters: int
    bytes: int


class CorpusSummary(Summary):
    """How much text there is, by split and by label, and what was dropped for which reason.
    `dropped_samples` are ids of a few documents and the start of their text. `skipped` lists the
    first of `skipped_parts` parts (`skipped_bytes` in all), `labels` the most frequent ones.
    `repeated_bytes` counts held-out text that stands in training, which was left out unless
    `repeats_stay`, `encodings` documents by the detected encoding, other than UTF-8, in which they
    were read."""

    files: tuple[CorpusFile, ...]
    documents: PerSplit
    sentences: PerSplit
    words: PerSplit
    characters: PerSplit
    bytes: PerSplit
    labels: dict[str, int]
    dropped: dict[str, int]
    dropped_samples: dict[str, list[dict[str, str]]]
    skipped: tuple[DocumentDamage, ...]
    skipped_parts: int
    skipped_bytes: int
    characters_removed: int
    characters_replaced: int
    encodings: dict[str, int] = Field(default_factory=dict)
    repeated_bytes: int = 0
    repeats_stay: bool = False

    def file_names(self, split: str) -> list[str]:
        return [row.file for row in self.files if row.split == split]

    def amount(self, number: Callable[[int], str] = "{:,}".format) -> str:
        """Return the amount of training text, in the unit that suits each source."""
        return _format_size((row for row in self.files if row.split == "train"), number)


def read_split(corpus: Artifact, split: str) -> Iterator[Document]:
    """Yield the documents of a split in order."""
    for file in CorpusSummary.of(corpus).file_names(split):
        yield from read_documents(corpus.folder, file)


@dataclass(slots=True)
class RangeReport:
    """Counts of reading or writing one range, of bounded size; see `CorpusSummary`."""

    source: str
    documents: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    skipped: list[DocumentDamage] = field(default_factory=list)  # the first ones
    skipped_parts: int = 0
    skipped_bytes: int = 0
    characters_removed: int = 0
    characters_replaced: int = 0
    encodings: Counter[str] = field(default_factory=Counter)
    files: list[CorpusFile] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)
    labels: Counter[str] = field(default_factory=Counter)
    repeated_bytes: int = 0
    repeats_stay: bool = False
    results: list[str] = field(default_factory=list)  # their keys (core/stages/artifact.py)

    def add(self, other: "RangeReport") -> None:
        """Add the counts of another report."""
        for name in ("documents", *_COUNTS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("dropped", "encodings", "labels", "sha256"):
            getattr(self, name).update(getattr(other, name))
        for reason, samples in other.samples.items():
            self.samples[reason] = (self.samples.get(reason, []) + samples)[:_SAMPLES]
        self.skipped = (self.skipped + other.skipped)[:_MOST_SKIPPED]
        self.files += other.files
        self.repeats_stay |= other.repeats_stay

    def drop(self, reason: str, id_: str, sentences: Sequence[str]) -> None:
        """Count a document that is dropped; keep the start of the first ones to show."""
        self.dropped[reason] += 1
        samples = self.samples.setdefault(reason, [])
        if len(samples) < _SAMPLES:
            # More sentences than characters are never needed.
            start = " ".join(one[:_SAMPLE_CHARACTERS] for one in sentences[:_SAMPLE_CHARACTERS])
            samples.append({"id": id_, "text": start.lstrip()[:_SAMPLE_CHARACTERS]})

    def skip(self, damage: DocumentDamage) -> None:
        """Count a part of a file that cannot be read."""
        self.skipped_parts += 1
        self.skipped_bytes += damage.bytes
        if len(self.skipped) < _MOST_SKIPPED:
            self.skipped.append(damage)

    def to_plain(self) -> dict[str, Any]:
        return _REPORTS.dump_python(self, mode="json")

    @staticmethod
    def from_plain(data: dict[str, Any]) -> "RangeReport":
        return _REPORTS.validate_python(data)


_REPORTS = TypeAdapter(RangeReport)


def count_units(words: int, characters: int) -> tuple[int, str]:
    """Return the size of a text, and its unit: characters if blanks do not separate words."""
    if characters > _LONGEST_WORDS * words:
        return characters, "characters"
    return words, "words"


def format_amount(
    parts: Iterable[tuple[int, int]], number: Callable[[int], str] = "{:,}".format
) -> str:
    """Sum words of texts with blanks between words, and characters of the others: `2 words`.
    `parts` holds the words, counted by blanks, and the characters of each text."""
    counts: Counter[str] = Counter()
    for words, characters in parts:
        count, unit = count_units(words, characters)
        counts[unit] += count
    return " and ".join(f"{number(counts[unit])} {unit}" for unit in sorted(counts, reverse=True))


def _format_count(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,}"


def _format_size(files: Iterable[CorpusFile], number: Callable[[int], str]) -> str:
    sizes: dict[str, Counter[str]] = {}
    for row in files:
        size = {"words": row.words, "characters": row.characters}
        sizes.setdefault(row.source, Counter()).update(size)
    return format_amount([(size["words"], size["characters"]) for size in sizes.values()], number)


def summarise_reports(
    reports: Iterable[RangeReport], held_out_fraction: float | None = None
) -> CorpusSummary:
    """Summarise a corpus from the reports of reading its ranges and, after all, of writing them;
    say if another share than `held_out_fraction` was held out."""
    total = RangeReport("")
    for report in reports:
        total.add(report)
    total.files.sort(key=lambda row: SPLITS.index(row.split))
    sizes: dict[str, Any] = {unit: PerSplit.sum_rows(total.files, unit) for unit in _UNITS}
    counts: dict[str, Any] = {name: getattr(total, name) for name in _COUNTS}
    return CorpusSummary(
        files=tuple(total.files),
        **sizes,
        sha256=total.sha256,
        headline="  ".join(_write_headline(total, sizes["bytes"], held_out_fraction)),
        # Ties by name.
        labels=dict(sorted(total.labels.items(), key=lambda one: (-one[1], one[0]))[:_MOST_LABELS]),
        dropped=dict(sorted(total.dropped.items())),
        dropped_samples=dict(sorted(total.samples.items())),
        skipped=tuple(total.skipped),
        encodings=dict(total.encodings.most_common()),
        repeats_stay=total.repeats_stay,
        **counts,
    )


def _write_headline(
    total: RangeReport, num_bytes: PerSplit, held_out_fraction: float | None
) -> Iterator[str]:
    """Yield what a corpus holds, and what was left out of it."""
    yield format_count(sum(row.documents for row in total.files), "document")
    yield ", ".join(
        f"{_format_size((row for row in total.files if row.split == split), _format_count)} {use}"
        for split, use in zip(SPLITS, ("to train on", "held out"), strict=True)
    )
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in total.dropped.most_common())
    yield f"{total.dropped.total():,} dropped" + (f" ({reasons})" if reasons else "")
    left_out = 0 if total.repeats_stay else total.repeated_bytes
    held_out = left_out + num_bytes.validation
    share = held_out / max(1, left_out + num_bytes.total)
    if held_out_fraction and abs(share - held_out_fraction) > _SHARE_TOLERANCE * held_out_fraction:
        yield f"held out {share:.1%} and not {held_out_fraction:.1%}: too little text to cut"
    if total.repeated_bytes:
        share = f"{total.repeated_bytes / held_out:.1%} of the held-out text"
        if total.repeats_stay:
            yield f"{share} stands in training and stays"
        else:
            yield f"left out {share}: it stands in training"
    if total.skipped:
        yield f"skipped {total.skipped_parts:,} unreadable, {total.skipped_bytes:,} bytes"
    if total.encodings:
        counts = total.encodings.most_common()
        yield "read " + ", ".join(f"{count:,} as {name}" for name, count in counts)
    if total.characters_removed:
        yield f"removed {format_count(total.characters_removed, 'unreadable character')}"
    if total.characters_replaced:
        yield f"{format_count(total.characters_replaced, 'character')} lost before (U+FFFD)"


def source_blocks(corpus: Artifact) -> list[dict[str, Any]]:
    """Return the sources in a corpus's config; the text of a task has one, the task's files."""
    config = corpus.record["config"]
    if "sources" in config:
        return config["sources"]
    task = find_input(corpus, "task").record["config"]
    return [{"kind": OF_A_TASK, "paths": task.get("train", [task["kind"]])}]


def describe_sources(corpus: Artifact) -> list[str]:
    """Return a line per source that says which bytes it was."""
    lines = []
    outside = corpus.record["facts"]["outside"]
    for index, source in enumerate(source_blocks(corpus)):
        places = source.get("packages") or source.get("paths") or []
        packages = outside.get(f"sources.{index}", {}).get("packages", {})
        names = [str(packages.get(place, place)) for place in places]
        lines.append(f"{source['kind']}: {', '.join(names)}")
    return lines


CORPUS = StageType(
    "corpus",
    12,
    LazyFunction("rungwise.corpus.building.stage:build_corpus"),
    CorpusSummary,
    identity=identity,
    outside=input_digests,
    resumes=True,
)
