"""What tests of the report and of exports share: small artifacts without a run, a page as a browser
takes it, its tables."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from rungwise.core import artifact as artifacts
from rungwise.core.artifact import Artifact
from rungwise.core.storage import Folder
from rungwise.instances.causal import CausalConfig
from rungwise.instances.kinds import KINDS
from rungwise.instances.masked_blocks import MaskedBlocksConfig
from rungwise.instances.masked_pairs import MaskedPairsConfig
from rungwise.instances.sentence_order import SentenceOrderConfig
from rungwise.instances.text import TokenisedText
from rungwise.tokenizer import ByteBpeConfig, WordPieceConfig, train
from rungwise.training.checkpoint import save_tensors
from rungwise.training.config import GradientConfig
from rungwise.training.throughput import COUNTING_RULE
from tests.conftest import SPECIAL_IDS, made_up_sentences, write_shards
from tests.small_models import objective_of, shaken, small_config, small_model

LENGTH = 24
INSTANCES: dict[str, Any] = {
    "mlm_nsp": MaskedPairsConfig,
    "mlm": MaskedBlocksConfig,
    "sentence_order": SentenceOrderConfig,
}
STEPS = 20


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
        "device": "CPU, 1 thread",
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


def text_of(tokenizer: Tokenizer, seed: int) -> TokenisedText:
    """Ten documents of four sentences."""
    encoded = [
        tokenizer.encode(sentence, add_special_tokens=False).ids
        for document in range(10)
        for sentence in made_up_sentences(10 * seed + document, 4)
    ]
    return TokenisedText(
        ids=np.array([token for ids in encoded for token in ids], np.uint16),
        starts=np.cumsum([0, *map(len, encoded)]),
        first_sentence=np.arange(0, len(encoded) + 1, 4),
        documents=[f"{seed}-{number}" for number in range(10)],
    )


def built(
    objective: str, root: Path, shape: dict[str, Any] | None = None, **summary: Any
) -> dict[str, Artifact]:
    """The artifacts of a pretrain workflow with this objective, the model only shaken.

    `shape` are keys of the model block, `summary` of the summary of the pretrain stage.
    """
    made: dict[str, Artifact] = {}

    def add(stage: str, config: dict[str, Any], found: dict[str, Any]) -> Artifact:
        fingerprint = f"{len(made):012x}"
        folder = Folder.at(root / stage / f"small-{fingerprint}")
        record = {
            "stage": stage,
            "fingerprint": fingerprint,
            "inputs": {
                name: {"stage": name, "fingerprint": one.fingerprint} for name, one in made.items()
            },
            "label": "small",
            "config": config,
            "facts": {"outside": {}},
            "summary": {"headline": stage, **found},
            "finished": "2026-01-02T03:04:05+00:00",
            "seconds": 1.0,
            "mlflow_run_id": None,
            "made_by": {
                "commit": None,
                "python": "3.11",
                "packages": {},
                "machine": {"system": "Linux", "cpus": 2},
            },
        }
        made[stage] = Artifact(stage, fingerprint, folder, record)
        return made[stage]

    masks = objective_of(objective).masks
    units = ("documents", "sentences", "words", "characters")
    corpus = {unit: {"train": 10, "validation": 10} for unit in units}
    corpus |= {"labels": {"made up": 20}, "dropped": {}, "dropped_examples": {}}
    corpus |= {"characters_removed": 0, "characters_replaced": 0}
    add("corpus", {"sources": [{"kind": "text", "paths": ["a.txt"]}]}, corpus)
    settings: Any = WordPieceConfig if masks else ByteBpeConfig
    config = settings(vocab_size=300, min_frequency=1)
    tokenizer = train(config, [s for seed in range(30) for s in made_up_sentences(seed, 4)])
    vocab_size = tokenizer.get_vocab_size()
    found = add("tokenizer", config.model_dump(), {"kind": config.kind, "vocab_size": vocab_size})
    with found.folder.staged("tokenizer.json") as path:
        tokenizer.save(str(path))

    read = INSTANCES.get(objective, CausalConfig)(sequence_length=LENGTH)
    kind = KINDS[read.kind]
    rng = np.random.Generator(np.random.Philox(0))
    shards = {
        f"{split}-00000.arrow": kind.build(text_of(tokenizer, seed), read, SPECIAL_IDS, rng).shard
        for seed, split in enumerate(("train", "validation"))
    }
    found = add("instances", read.model_dump(mode="json"), {})
    shares = ("selected", "mask", "random", "kept", "is_next", "in_order", "truncated")
    found.record["summary"] |= {
        **write_shards(Path(found.folder.uri), shards, vocab_size),
        "kind": read.kind,
        "sequence_length": LENGTH,
        "tokens": 1000,
        "unigram_entropy": 4.5,
        "statistics": {f"{name}_share": 0.5 for name in shares}
        | {"fill": 0.9, "length_histogram": list(range(16))},
    }

    torch.manual_seed(1)
    changes = {"max_position_embeddings": LENGTH} | (shape or {})
    model_config = small_config(objective, **changes)
    model = shaken(small_model(objective, vocab_size, **changes), 0.2)
    parts = objective_of(objective).parts
    rows = [
        {
            "step": step,
            "tokens": 100 * step,
            "loss": 5.0,
            "perplexity": 123.4,
            **{f"{part}_loss": 5.678 - 0.01 * step for part in parts},
            **{f"{part}_accuracy": 0.234 for part in parts},
            **({} if masks else {"bits_per_byte": 2.345}),
        }
        for step in (0, STEPS // 2, STEPS)
    ]
    pretrain = GradientConfig(steps=STEPS, validation_instances=40, objective=objective)
    found = add(
        "pretrain",
        {"model": model_config.model_dump(), "pretrain": pretrain.model_dump()},
        {
            "steps": STEPS,
            "tokens": 100 * STEPS,
            "epochs": 1.5,
            "history": [{"learning_rate": 1e-3, **row} for row in rows[1:]],
            "validation": rows,
            "final": rows[-1],
            "parameters": 12345,
            "vocab_size": vocab_size,
            "model": model_config.model_dump(),
            **speed_summary(STEPS),
            **summary,
        },
    )
    save_tensors(found.folder, "model.safetensors", model.state_dict())
    return {name: artifacts.finish(one.folder, one.record, {}) for name, one in made.items()}


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))
