"""The summary of a corpus artifact, from the reports of its shards."""

from __future__ import annotations

from typing import Any

from rungwise.corpus.shards import SPLITS

_LABELS_SHOWN = 100
_UNITS = ("documents", "sentences", "words", "characters", "bytes", "spans")


def totals_of(report: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The amount of each unit in each split, from the result of `shards.merged`."""
    return {
        unit: {
            split: sum(file[unit] for file in report["files"] if file["split"] == split)
            for split in SPLITS
        }
        for unit in _UNITS
    }


def summary_of(report: dict[str, Any]) -> dict[str, Any]:
    """The summary of the artifact as plain data, from the result of `shards.merged`."""
    totals = totals_of(report)
    samples = report["dropped_samples"]
    headline = [
        f"{sum(totals['documents'].values()):,} documents",
        f"{sum(totals['words'].values()) / 1e6:.1f} M words",
        f"{sum(report['dropped'].values()):,} dropped",
    ]
    if count := report["unreadable_files"]:
        headline.append(f"{count:,} file{'s' * (count > 1)} unreadable")
    return {
        "files": report["files"],
        **totals,
        "headline": "  ".join(headline),
        "labels": dict(report["labels"].most_common(_LABELS_SHOWN)),
        "dropped": report["dropped"],
        "dropped_examples": {
            reason: [example["id"] for example in examples] for reason, examples in samples.items()
        },
        "dropped_samples": {
            reason: shown
            for reason, examples in samples.items()
            if (shown := [example for example in examples if example["text"]])
        },
        "unreadable": report["unreadable"],
        "unreadable_files": report["unreadable_files"],
        "spans_dropped": report["spans_dropped"],
        "characters_removed": report["removed"],
        "characters_replaced": report["replaced"],
    }
