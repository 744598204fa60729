"""Fitting by counting on a local Ray: the same model whoever counts what, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rungwise.core.artifact import Artifact
from rungwise.core.context import Context
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.storage import Folder
from rungwise.instances.contexts import ContextsConfig
from rungwise.instances.shards import Shard
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.counts import load_counted, pretrain_by_counts
from rungwise.training.checkpoint import MODEL
from tests.conftest import write_shards
from tests.summaries import standing

V, END = 40, 3


def sentences(seed: int, count: int = 300) -> list[list[int]]:
    """A language in which a word calls for the next, each sentence closed by the end symbol."""
    rng = np.random.default_rng(seed)
    made = []
    for length in rng.integers(2, 9, count):
        steps = rng.choice([1, 1, 1, 2, 7], int(length)).cumsum() + rng.integers(V)
        made.append([*(5 + steps % (V - 5)).tolist(), END])
    return made


def instances(folder: Path, pieces: int, kind: str = "contexts") -> Artifact:
    """The same text in one training shard or in several."""

    def shard(rows: list[list[int]]) -> Shard:
        lengths = [len(row) for row in rows]
        ids = np.array([token for row in rows for token in row], dtype=np.uint16)
        return Shard(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    text = sentences(0)
    shards = {
        f"train-{number:05d}.arrow": shard(text[number::pieces]) for number in range(pieces)
    } | {"validation-00000.arrow": shard(sentences(1, 60))}
    summary = write_shards(folder, shards, V, kind=kind, sequence_length=None)
    config = ContextsConfig().model_dump(mode="json")
    return standing("instances", folder, summary, config, fingerprint="f" * 12)


def settings(**model: Any) -> PretrainStageConfig:
    fallback = {"fallback_discounts": [0.5, 1.0, 1.5]}
    return PretrainStageConfig.model_validate(
        {
            "model": {"kind": "ngram", "order": 3, **fallback, **model},
            "pretrain": {"kind": "counts"},
        }
    )


def test_any_number_of_shards_gives_the_same_model(tmp_path: Path, ray_session: None) -> None:
    written = []
    for pieces in (1, 4):
        inputs = {"instances": instances(tmp_path / f"in{pieces}", pieces)}
        output = Folder.at(tmp_path / f"out{pieces}")
        summary = pretrain_by_counts(settings(), inputs, output, Context())
        written.append(output.read_bytes(MODEL))
    assert written[0] == written[1]
    assert summary.fitting == "counts"
    assert summary.gradient is None
    assert summary.final["perplexity"] == pytest.approx(math.exp(summary.final["lm_loss"]))
    model = load_counted(settings(), standing("pretrain", tmp_path / "out4", summary))
    held_out = sentences(1, 60)
    nats = -sum(row.sum() for row in model.log_probabilities(held_out))
    assert nats / sum(map(len, held_out)) == pytest.approx(summary.final["loss"])


def test_what_cannot_be_counted_is_said(tmp_path: Path, ray_session: None) -> None:
    with pytest.raises(ConfigError, match=r"pretrain\.kind is gradient, but model\.kind is ngram"):
        PretrainStageConfig.model_validate({"model": {"kind": "ngram"}, "pretrain": {"steps": 3}})
    output = Folder.at(tmp_path / "out")
    blocks = {"instances": instances(tmp_path / "blocks", 1, kind="causal")}
    with pytest.raises(UserError, match=r"reads instances\.kind contexts, but .* are causal"):
        pretrain_by_counts(settings(), blocks, output, Context())
    small = {"instances": instances(tmp_path / "small", 1)}
    with pytest.raises(DataError, match=r"model\.fallback_discounts"):
        pretrain_by_counts(settings(order=9, fallback_discounts=None), small, output, Context())
    assert not output.exists(MODEL)
