"""The summary of a corpus artifact, from the reports of its shards."""

from __future__ import annotations

from typing import Any

from rungwise.core.summary import Part, PerSplit, Summary
from rungwise.corpus.shards import SPLITS

_LABELS_SHOWN = 100
_UNITS = ("documents", "sentences", "words", "characters", "bytes", "spans")


class CorpusFile(Part):
    """One file of documents and how much it holds of each unit."""

    file: str
    split: str
    source: str = "corpus"
    documents: int
    sentences: int
    words: int
    characters: int
    bytes: int
    spans: int


class CorpusSummary(Summary):
    """How much text there is, by split and by label, and what was dropped for which reason.

    `dropped_examples` are ids of a few documents, `dropped_samples` the same with their text where
    some is known; `unreadable` names a few of the `unreadable_files`.
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
    unreadable: list[dict[str, str]]
    unreadable_files: int
    spans_dropped: int
    characters_removed: int
    characters_replaced: int

    def files_of(self, split: str) -> list[str]:
        """The names of the files of a split."""
        return [row.file for row in self.files if row.split == split]


def summary_of(reports: dict[str, Any]) -> CorpusSummary:
    """The summary of a corpus; `reports` are of `shards.merged`."""
    files = [CorpusFile(**row) for row in reports["files"]]
    totals: dict[str, Any] = {
        unit: PerSplit(
            **{
                split: sum(getattr(row, unit) for row in files if row.split == split)
                for split in SPLITS
            }
        )
        for unit in _UNITS
    }
    samples = reports["dropped_samples"]
    headline = [
        f"{totals['documents'].total:,} documents",
        f"{totals['words'].total / 1e6:.1f} M words",
        f"{sum(reports['dropped'].values()):,} dropped",
    ]
    if count := reports["unreadable_files"]:
        headline.append(f"{count:,} file{'s' * (count > 1)} unreadable")
    return CorpusSummary(
        files=tuple(files),
        **totals,
        headline="  ".join(headline),
        labels=dict(reports["labels"].most_common(_LABELS_SHOWN)),
        dropped=reports["dropped"],
        dropped_examples={
            reason: [one["id"] for one in several] for reason, several in samples.items()
        },
        dropped_samples={
            reason: shown
            for reason, examples in samples.items()
            if (shown := [example for example in examples if example["text"]])
        },
        unreadable=reports["unreadable"],
        unreadable_files=reports["unreadable_files"],
        spans_dropped=reports["spans_dropped"],
        characters_removed=reports["removed"],
        characters_replaced=reports["replaced"],
    )
