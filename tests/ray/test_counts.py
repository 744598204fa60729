"""Fitting by counting on a local Ray: the same model whoever counts what, and what is refused."""

import dataclasses
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact, PerSplit
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.families.ngram import arpa_lines, name_tokens
from rungwise.serving.importing import import_weights
from rungwise.tokenizer.token_stage import TokensRow, TokensSummary
from rungwise.tokenizer.token_text import write_tokens
from rungwise.training.config import FitConfig
from rungwise.training.fit_config import CountsConfig, PretrainStageConfig
from rungwise.training.initial import ImportConfig
from rungwise.training.pretrained import load_model
from rungwise.training.ray.from_tokens import pretrain_by_counts
from rungwise.training.tensor_files import MODEL
from tests.conftest import SPECIAL_IDS, text_of_words
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


def tokens(folder: Path, pieces: int) -> Artifact:
    """The same text in one training file, or in several that are said to be large."""
    folder.mkdir(parents=True)
    text, rows = sentences(0), []
    files = {f"train-{number:05d}.arrow": text[number::pieces] for number in range(pieces)}
    for name, rows_of_file in (files | {"validation-00000.arrow": sentences(1, 60)}).items():
        part = text_of_words([[row[:-1]] for row in rows_of_file])
        count = len(part.ids)
        write_tokens(dataclasses.replace(part, unit_starts=np.ones(count, bool)), folder / name)
        rows.append(
            TokensRow(
                file=name,
                split=name.split("-")[0],
                source="made up",
                sha256="",
                documents=1,
                sentences=len(rows_of_file),
                tokens=count,
                text_bytes=1000 if pieces == 1 else 1_000_000,
            )
        )
    summary = TokensSummary.model_construct(
        files=tuple(rows),
        vocab_size=V,
        special=SPECIAL_IDS,
        documents=PerSplit(train=300, validation=60),
        tokens=PerSplit(train=sum(row.tokens for row in rows[:-1]), validation=rows[-1].tokens),
        text_bytes=PerSplit(train=1000, validation=1000),
        unigram_loss=4.0,
        headline="tokens",
    )
    return standing("tokens", folder, summary, fingerprint="f" * 12)


def settings(**model: Any) -> PretrainStageConfig:
    fallback = {"fallback_discounts": [0.5, 1.0, 1.5]}
    return PretrainStageConfig.model_validate(
        {
            "model": {"kind": "ngram", "order": 3, **fallback, **model},
            "pretrain": {"kind": "counts"},
        }
    )


def counted(config: PretrainStageConfig) -> FitConfig[CountsConfig]:
    assert isinstance(config.pretrain, CountsConfig)
    return FitConfig(config.model, config.pretrain)


@pytest.mark.slow
def test_any_number_of_shards_gives_the_same_model(tmp_path: Path, ray_session: None) -> None:
    written = []
    for pieces in (1, 4):
        inputs = {"tokens": tokens(tmp_path / f"in{pieces}", pieces)}
        output = Folder.at(tmp_path / f"out{pieces}")
        summary = pretrain_by_counts(counted(settings()), inputs, output, Context())
        written.append(output.read_bytes(MODEL))
    assert written[0] == written[1]
    assert summary.fitting == "counts"
    assert summary.gradient is None
    assert summary.final["perplexity"] == pytest.approx(math.exp(summary.final["lm_loss"]))
    config = settings().model_dump(mode="json")
    pretrain = standing("pretrain", tmp_path / "out4", summary, config)
    model: Any = load_model(pretrain, SPECIAL_IDS)
    held_out = sentences(1, 60)
    nats = -sum(row.sum() for row in model.log_probabilities(held_out))
    assert nats / sum(map(len, held_out)) == pytest.approx(summary.final["loss"])


def test_what_cannot_be_counted_is_said(tmp_path: Path, ray_session: None) -> None:
    with pytest.raises(ConfigError, match=r"pretrain\.kind is gradient, but model\.kind is ngram"):
        PretrainStageConfig.model_validate({"model": {"kind": "ngram"}, "pretrain": {"steps": 3}})
    output = Folder.at(tmp_path / "out")
    small = {"tokens": tokens(tmp_path / "small", 1)}
    config = counted(settings(order=9, fallback_discounts=None))
    with pytest.raises(DataError, match=r"model\.fallback_discounts"):
        pretrain_by_counts(config, small, output, Context())
    assert not output.exists(MODEL)


def test_counts_of_a_file_are_those_that_it_was_written_from(
    tmp_path: Path, ray_session: None
) -> None:
    text = {"tokens": tokens(tmp_path / "in", 1)}
    counts, given = Folder.at(tmp_path / "counts"), Folder.at(tmp_path / "given")
    summary = pretrain_by_counts(counted(settings()), text, counts, Context())
    pretrain = standing("pretrain", counts, summary, settings().model_dump(mode="json"))
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*marks, *(f"w{id_}" for id_ in range(len(marks), V))]
    tokenizer = Tokenizer(WordLevel({word: id_ for id_, word in enumerate(words)}, "[UNK]"))
    tokenizer.add_special_tokens(marks)
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    model: Any = load_model(pretrain, SPECIAL_IDS)
    lines = arpa_lines(model, name_tokens(words, SPECIAL_IDS))
    with gzip.open(tmp_path / "their.arpa.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    config = ImportConfig(path=str(tmp_path / "their.arpa.gz"))
    inputs = {"tokenizer": Artifact("tokenizer", "t" * 12, Folder.at(tmp_path / "tokenizer"), {})}
    read = import_weights(config, inputs, Folder.at(tmp_path / "initial"), Context())
    initial = text | {"initial": standing("initial", tmp_path / "initial", read)}
    again = pretrain_by_counts(counted(settings()), initial, given, Context())
    assert again.final["loss"] == pytest.approx(summary.final["loss"], rel=1e-7)
    assert again.tokens == 0
    with pytest.raises(ConfigError, match=r"n-grams of up to 3 words, and the model has the order"):
        pretrain_by_counts(counted(settings(order=2)), initial, given, Context())
