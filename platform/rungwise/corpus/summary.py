"""The summary of a corpus artifact, and the reports of its ranges, which add up to it; and the
stage, for planning (building/stage.py builds it)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, TypeAdapter

from rungwise.core.lazy import LazyFunction
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import PerSplit, Summary, SummaryPart
from rungwise.core.wording import format_count
from rungwise.corpus.config import identity
from rungwise.corpus.document import Document, DocumentDamage, read_documents
from rungwise.corpus.files import input_digests

CORPORA = ("corpus", "task_text")  # the stages that make a corpus
OF_A_TASK = "text of a task, without its labels"
SPLITS = ("train", "validation")
_SAMPLES = 3  # dropped documents of each reason
_SAMPLE_CHARACTERS = 80
_MOST_LABELS = 100
_MOST_SKIPPED = 20
_SHARE_TOLERANCE = 0.2
# Longest mean word with its blank (German: 7); above it, blanks do not separate words.
_LONGEST_WORDS = 12
_UNITS = ("documents", "sentences", "words", "characters", "bytes", "spans")


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
    spans: int


class CutCount(SummaryPart):
    """Text removed from the documents of a source, and why."""

    source: str
    reason: str
    paragraphs: int
    characters: int


class CorpusSummary(Summary):
    """How much text there is, by split and by label, and what was dropped for which reason.

    `dropped_examples` are ids of a few documents, `dropped_samples` adds their text if known.
    `skipped` lists the first of `skipped_parts` parts (`skipped_bytes` in all), `labels` the most
    frequent ones. `cut` is text removed from documents that stay, `repeated_bytes` held-out
    text that stands in training, which was left out unless `repeats_stay`. `encodings` counts
    documents by the detected encoding, other than UTF-8, in which they were read.
    """

    files: tuple[CorpusFile, ...]
    documents: PerSplit
    sentences: PerSplit
    words: PerSplit
    characters: PerSplit
    bytes: PerSplit
    spans: PerSplit
    labels: dict[str, int]
    dropped: dict[str, int]
    dropped_examples: dict[str, list[str]]
    dropped_samples: dict[str, list[dict[str, str]]]
    skipped: tuple[DocumentDamage, ...]
    skipped_parts: int
    skipped_bytes: int
    cut: tuple[CutCount, ...]
    spans_dropped: int
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
    """Counts of reading or writing one range, of bounded size."""

    source: str
    documents: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    skipped: list[DocumentDamage] = field(default_factory=list)  # the first ones
    skipped_parts: int = 0
    skipped_bytes: int = 0
    paragraphs_cut: Counter[str] = field(default_factory=Counter)
    characters_cut: Counter[str] = field(default_factory=Counter)
    characters_removed: int = 0
    characters_replaced: int = 0
    encodings: Counter[str] = field(default_factory=Counter)
    files: list[CorpusFile] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    spans_dropped: int = 0
    repeated_bytes: int = 0  # of held-out text that stands in training
    repeats_stay: bool = False  # or were left out
    results: dict[str, str] = field(default_factory=dict)  # core/stages/notes.py

    def add(self, piece: "RangeReport") -> None:
        """Add the report of reading the next piece of the range."""
        self.documents += piece.documents
        self.skipped_parts += piece.skipped_parts
        self.skipped_bytes += piece.skipped_bytes
        self.characters_removed += piece.characters_removed
        self.characters_replaced += piece.characters_replaced
        for name in ("dropped", "paragraphs_cut", "characters_cut", "encodings"):
            getattr(self, name).update(getattr(piece, name))
        for reason, samples in piece.samples.items():
            self.samples[reason] = (self.samples.get(reason, []) + samples)[:_SAMPLES]
        self.skipped = (self.skipped + piece.skipped)[:_MOST_SKIPPED]

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

    def cut(self, reason: str, paragraphs: int, characters: int) -> None:
        """Count text removed from a document that stays."""
        if characters:
            self.paragraphs_cut[reason] += paragraphs
            self.characters_cut[reason] += characters

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

    `parts` holds the words, counted by blanks, and the characters of each text.
    """
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


def repeats_most(reports: Iterable[RangeReport]) -> bool:
    """Whether more than half of the held-out text was left out."""
    reports = list(reports)
    left_out = sum(report.repeated_bytes for report in reports)
    stays = any(report.repeats_stay for report in reports)
    return not stays and left_out > sum(file.bytes for one in reports for file in one.files)


def summarise_reports(
    reports: Sequence[RangeReport], held_out_fraction: float | None = None
) -> CorpusSummary:
    """Summarise a corpus from the reports of reading its ranges and, after all, of writing them;
    say if another share than `held_out_fraction` was held out."""
    files = [file for report in reports for file in report.files]
    files.sort(key=lambda row: SPLITS.index(row.split))
    totals: dict[str, Any] = {unit: PerSplit.sum_rows(files, unit) for unit in _UNITS}
    labels: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    encodings: Counter[str] = Counter()
    samples: dict[str, list[dict[str, str]]] = {}
    cuts: dict[tuple[str, str], Counter[str]] = {}
    for report in reports:
        labels.update(report.labels)
        dropped.update(report.dropped)
        encodings.update(report.encodings)
        for reason, examples in report.samples.items():
            samples[reason] = (samples.get(reason, []) + examples)[:_SAMPLES]
        for reason, characters in report.characters_cut.items():
            size = {"paragraphs": report.paragraphs_cut[reason], "characters": characters}
            cuts.setdefault((report.source, reason), Counter()).update(size)
    skipped = [part for report in reports for part in report.skipped]
    skipped_parts = sum(report.skipped_parts for report in reports)
    skipped_bytes = sum(report.skipped_bytes for report in reports)
    sizes = [
        f"{_format_size((file for file in files if file.split == split), _format_count)} {purpose}"
        for split, purpose in zip(SPLITS, ("to train on", "held out"), strict=True)
    ]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.most_common())
    headline = [
        format_count(totals["documents"].total, "document"),
        ", ".join(sizes),
        f"{dropped.total():,} dropped" + (f" ({reasons})" if reasons else ""),
    ]
    repeated = sum(report.repeated_bytes for report in reports)
    repeats_stay = any(report.repeats_stay for report in reports)
    left_out = 0 if repeats_stay else repeated
    held_out = left_out + totals["bytes"].validation
    share = held_out / max(1, left_out + totals["bytes"].total)
    if held_out_fraction and abs(share - held_out_fraction) > _SHARE_TOLERANCE * held_out_fraction:
        headline.append(
            f"held out {share:.1%} and not {held_out_fraction:.1%}: too little text to cut"
        )
    if repeated:
        share = f"{repeated / held_out:.1%} of the held-out text"
        if repeats_stay:
            headline.append(f"{share} stands in training and stays")
        else:
            headline.append(f"left out {share}: it stands in training")
    if skipped:
        headline.append(f"skipped {skipped_parts:,} unreadable, {skipped_bytes:,} bytes")
    if cuts:
        characters = sum(size["characters"] for size in cuts.values())
        headline.append(f"cut {characters:,} characters")
    removed = sum(report.characters_removed for report in reports)
    replaced = sum(report.characters_replaced for report in reports)
    if encodings:
        by_encoding = ", ".join(f"{count:,} as {name}" for name, count in encodings.most_common())
        headline.append(f"read {by_encoding}")
    if removed:
        headline.append(f"removed {format_count(removed, 'unreadable character')}")
    if replaced:
        headline.append(f"{format_count(replaced, 'character')} lost before (U+FFFD)")
    samples = dict(sorted(samples.items()))
    with_text = {
        reason: [one for one in examples if one["text"]] for reason, examples in samples.items()
    }
    return CorpusSummary(
        files=tuple(files),
        **totals,
        sha256={file: sha256 for report in reports for file, sha256 in report.sha256.items()},
        headline="  ".join(headline),
        # Ties by name.
        labels=dict(sorted(labels.items(), key=lambda one: (-one[1], one[0]))[:_MOST_LABELS]),
        dropped=dict(sorted(dropped.items())),
        dropped_examples={
            reason: [one["id"] for one in examples] for reason, examples in samples.items()
        },
        dropped_samples={reason: examples for reason, examples in with_text.items() if examples},
        skipped=tuple(skipped[:_MOST_SKIPPED]),
        skipped_parts=skipped_parts,
        skipped_bytes=skipped_bytes,
        cut=tuple(
            CutCount(source=source, reason=reason, **size)
            for (source, reason), size in sorted(cuts.items())
        ),
        spans_dropped=sum(report.spans_dropped for report in reports),
        characters_removed=removed,
        characters_replaced=replaced,
        encodings=dict(encodings.most_common()),
        repeated_bytes=repeated,
        repeats_stay=repeats_stay,
    )


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
        versions = outside.get(f"sources.{index}", {})
        packages = versions.get("packages", {}) if isinstance(versions, dict) else {}
        names = [str(packages.get(place, place)) for place in places]
        lines.append(f"{source['kind']}: {', '.join(names)}")
    return lines


CORPUS = StageType(
    "corpus",
    10,
    LazyFunction("rungwise.corpus.building.stage:build_corpus"),
    CorpusSummary,
    identity=identity,
    outside=input_digests,
    resumes=True,
    refuse=LazyFunction("rungwise.corpus.building.stage:refuse_small"),
)
