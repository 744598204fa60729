"""What a corpus artifact says of itself, from what its shards report."""

from __future__ import annotations

from typing import Any

from rungwise.corpus.shards import SPLITS

_LABELS_SHOWN = 100
_UNITS = ("documents", "sentences", "words", "characters", "bytes", "spans")


def totals_of(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    """How much of each unit each split holds; `found` is of `shards.merged`."""
    return {
        unit: {
            split: sum(file[unit] for file in found["files"] if file["split"] == split)
            for split in SPLITS
        }
        for unit in _UNITS
    }


def summary_of(found: dict[str, Any]) -> dict[str, Any]:
    """The summary of the artifact, plain data; `found` is of `shards.merged`."""
    totals = totals_of(found)
    samples = found["dropped_samples"]
    headline = [
        f"{sum(totals['documents'].values()):,} documents",
        f"{sum(totals['words'].values()) / 1e6:.1f} M words",
        f"{sum(found['dropped'].values()):,} dropped",
    ]
    if count := found["unreadable_files"]:
        headline.append(f"{count:,} file{'s' * (count > 1)} unreadable")
    return {
        "files": found["files"],
        **totals,
        "headline": "  ".join(headline),
        "labels": dict(found["labels"].most_common(_LABELS_SHOWN)),
        "dropped": found["dropped"],
        "dropped_examples": {
            reason: [one["id"] for one in several] for reason, several in samples.items()
        },
        "dropped_samples": {
            reason: shown
            for reason, several in samples.items()
            if (shown := [one for one in several if one["text"]])
        },
        "unreadable": found["unreadable"],
        "unreadable_files": found["unreadable_files"],
        "spans_dropped": found["spans_dropped"],
        "characters_removed": found["removed"],
        "characters_replaced": found["replaced"],
    }
