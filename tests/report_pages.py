"""What tests of the report share: a page as a browser takes it, its tables, numbers of a run."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rungwise.training.throughput import COUNTING_RULE


def speed_summary(steps: int, **changes: Any) -> dict[str, Any]:
    """What the summary of a pretrain stage says about time, of a run that went smoothly."""
    rows = [
        {
            "step": step,
            "seconds": 1.0,
            "step_seconds": 0.1,
            "tokens_per_second": 9000.0 + step,
            "data_wait_share": 0.01,
            "checkpoint_stall_share": 0.002,
            "mfu": 0.4,
        }
        for step in range(steps // 2, steps + 1, steps // 2)
    ]
    return {
        "flops_per_token": 1e6,
        "flops_rule": COUNTING_RULE,
        "tokens_per_second": 1e4,
        "timings": rows,
        "throughput": {
            "tokens_per_second": 1e4,
            "step_seconds": 0.1,
            "seconds": 2.5,
            "data_wait_share": 0.0123,
            "checkpoint_stall_share": 0.002,
            "matmul_flops_per_second": 2.5e10,
            "mfu": 0.4,
            "checkpoint_save_seconds": 0.25,
            "checkpoint_stall_seconds": 0.005,
            "checkpoints_failed": 0,
        },
        "attempts": [{"step": 0, "workers": 2}],
        "skipped_steps": [],
        "spikes": [],
        "stopped_early": False,
        "data_hash": "0123456789abcdef0123456789abcdef",
        "parallel": "ddp",
        "bfloat16": False,
        **changes,
    }


class Page(HTMLParser):
    """What a browser would load, the ids, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: list[str] = [""]
        self.styles = ""
        self.words = ""
        self.feed(text)
        self.words = " ".join(self.words.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.ids |= {found["id"]} if "id" in found else set()
        self.loads += [found[name] for name in ("src", "srcset", "data", "poster") if name in found]
        self.loads += [found["href"]] if tag == "link" else []
        self.links += [found["href"]] if tag == "a" else []
        self.styles += found.get("style", "")
        assert not any(name.startswith("on") for name in found), f"{tag} has a handler"

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "style":
            self.styles += data
        else:
            self.words += data


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))
