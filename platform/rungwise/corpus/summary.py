"""The summary of a corpus artifact, from the reports of its ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rungwise.core.plural import counted
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.stages.summary import Part, PerSplit, Summary
from rungwise.corpus.building.range_builder import SAMPLES
from rungwise.corpus.building.shards import SPLITS

CORPORA = ("corpus", "task_text")  # the stages that make a corpus
OF_A_TASK = "text of a task, without its labels"
_LABELS_SHOWN = 100
_SKIPPED_SHOWN = 20
# Longest mean word with its blank (German: 7); above it, blanks do not separate words.
_LONGEST_WORDS = 12
_UNITS = ("documents", "sentences", "words", "characters", "bytes", "spans")


class CorpusFile(Part):
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


class Skipped(Part):
    """An unreadable part of a file: place, size, reason, and the config key to change."""

    file: str
    place: str
    bytes: int
    reason: str
    detail: str
    key: str


class Cut(Part):
    """Text removed from the documents of a source, and why."""

    source: str
    reason: str
    paragraphs: int
    characters: int


class CorpusSummary(Summary):
    """How much text there is, by split and by label, and what was dropped for which reason.

    `dropped_examples` are ids of a few documents, `dropped_samples` adds their text if known.
    `skipped` lists the first of `skipped_parts` parts (`skipped_bytes` in all), `labels` the most
    frequent ones. `cut` is text removed from documents that stay.
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
    skipped: tuple[Skipped, ...]
    skipped_parts: int
    skipped_bytes: int
    cut: tuple[Cut, ...]
    spans_dropped: int
    characters_removed: int
    characters_replaced: int

    def files_of(self, split: str) -> list[str]:
        return [row.file for row in self.files if row.split == split]

    def amount(self, number: Callable[[int], str] = "{:,}".format) -> str:
        """Return the amount of training text, in the unit that suits each source."""
        return _amount((row for row in self.files if row.split == "train"), number)


def format_amount(
    parts: Iterable[tuple[int, int]], number: Callable[[int], str] = "{:,}".format
) -> str:
    """Sum words of texts with blanks between words, and characters of the others: `2 words`.

    `parts` holds the words, counted by blanks, and the characters of each text.
    """
    counts: Counter[str] = Counter()
    for words, characters in parts:
        if characters > _LONGEST_WORDS * words:
            counts["characters"] += characters
        else:
            counts["words"] += words
    return " and ".join(f"{number(counts[unit])} {unit}" for unit in sorted(counts, reverse=True))


def summarise_reports(
    staged: Sequence[dict[str, Any]], written: Sequence[dict[str, Any]]
) -> CorpusSummary:
    """Summarise a corpus from the reports of reading and writing its ranges, in order."""
    rows = [file for report in written for file in report["files"]]
    rows.sort(key=lambda row: SPLITS.index(row["split"]))
    files = [CorpusFile(**{key: row[key] for key in CorpusFile.model_fields}) for row in rows]
    totals: dict[str, Any] = {
        unit: PerSplit(
            **{
                split: sum(getattr(row, unit) for row in files if row.split == split)
                for split in SPLITS
            }
        )
        for unit in _UNITS
    }
    labels: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    samples: dict[str, list[dict[str, str]]] = {}
    for report in written:
        labels.update(report["labels"])
    paragraphs_cut: Counter[tuple[str, str]] = Counter()
    characters_cut: Counter[tuple[str, str]] = Counter()
    for report in (*staged, *written):
        dropped.update(report["dropped"])
        for reason, several in report["samples"].items():
            samples[reason] = (samples.get(reason, []) + several)[:SAMPLES]
        for one in report["cut"]:
            paragraphs_cut[one["source"], one["reason"]] += one["paragraphs"]
            characters_cut[one["source"], one["reason"]] += one["characters"]
    skipped = [Skipped(**part) for report in staged for part in report["damage"]]
    skipped_parts = sum(report["damaged"] for report in staged)
    skipped_bytes = sum(report["damaged_bytes"] for report in staged)
    headline = [
        counted(totals["documents"].total, "document"),
        _amount(files, lambda count: f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count:,}"),
        f"{dropped.total():,} dropped",
    ]
    if skipped:
        headline.append(f"skipped {skipped_parts:,} unreadable, {skipped_bytes:,} bytes")
    if characters_cut:
        headline.append(f"cut {characters_cut.total():,} characters")
    return CorpusSummary(
        files=tuple(files),
        **totals,
        sha256={row["file"]: row["sha256"] for row in rows},
        headline="  ".join(headline),
        # Ties by name.
        labels=dict(sorted(labels.items(), key=lambda one: (-one[1], one[0]))[:_LABELS_SHOWN]),
        dropped=dict(sorted(dropped.items())),
        dropped_examples={
            reason: [one["id"] for one in samples[reason]] for reason in sorted(samples)
        },
        dropped_samples={
            reason: shown
            for reason in sorted(samples)
            if (shown := [example for example in samples[reason] if example["text"]])
        },
        skipped=tuple(skipped[:_SKIPPED_SHOWN]),
        skipped_parts=skipped_parts,
        skipped_bytes=skipped_bytes,
        cut=tuple(
            Cut(
                source=source,
                reason=reason,
                paragraphs=paragraphs_cut[source, reason],
                characters=characters,
            )
            for (source, reason), characters in sorted(characters_cut.items())
        ),
        spans_dropped=sum(report["spans_dropped"] for report in written),
        characters_removed=sum(report["removed"] for report in staged),
        characters_replaced=sum(report["replaced"] for report in staged),
    )


def _amount(files: Iterable[CorpusFile], number: Callable[[int], str]) -> str:
    words: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for row in files:
        words[row.source] += row.words
        characters[row.source] += row.characters
    return format_amount([(words[source], characters[source]) for source in words], number)


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
        known = versions.get("packages", {}) if isinstance(versions, dict) else {}
        names = [str(known.get(place, place)) for place in places]
        lines.append(f"{source['kind']}: {', '.join(names)}")
    return lines
