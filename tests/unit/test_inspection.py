"""`rungwise inspect`: what is printed is what is read."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rungwise.__main__ import main
from rungwise.core import artifact
from rungwise.core.artifact import Artifact
from rungwise.core.storage import Folder
from rungwise.corpus.document import RawDocument
from rungwise.corpus.in_memory import write_corpus
from rungwise.corpus.sources import Rules
from rungwise.instances import stage
from rungwise.instances.causal import CausalConfig
from rungwise.instances.contexts import ContextsConfig
from rungwise.instances.inspection import find, inspect
from rungwise.instances.kinds import KINDS
from rungwise.instances.masked_pairs import MaskedPairsConfig
from rungwise.instances.masked_reader import MaskedReader
from rungwise.instances.sentence_order import SentenceOrderConfig
from rungwise.instances.shard_task import ShardTask
from rungwise.instances.summary import InstancesSummary
from rungwise.instances.windows import WindowsConfig
from rungwise.tokenizer import ByteBpeConfig, WordPieceConfig, load, special_ids, train
from tests.conftest import made_up_sentences

CONFIGS = {
    "masked_pairs": MaskedPairsConfig(sequence_length=32),
    "sentence_order": SentenceOrderConfig(sequence_length=32),
    "causal": CausalConfig(sequence_length=24),
    "contexts": ContextsConfig(context_size=3),
    "windows": WindowsConfig(window=2, subsample=0),
}


def build(root: Path, kind: str) -> Artifact:
    """An instances artifact of made-up text, with the corpus and the tokenizer it was made of."""
    config = CONFIGS[kind]
    corpus = Folder.at(root / "corpus" / "small-c")
    drafts = [
        RawDocument(f"d{number}", "l", made_up_sentences(number, 12), segmented=True)
        for number in range(60)
    ]
    rules = Rules(minimum_characters=10, held_out_fraction=0.3)
    files = write_corpus([drafts], rules, "made up", corpus).files
    text = [sentence for draft in drafts for sentence in draft.paragraphs]
    settings = (
        ByteBpeConfig(vocab_size=400, min_frequency=1)
        if kind == "causal"
        else WordPieceConfig(vocab_size=200, min_frequency=1)
    )
    tokenizer = train(settings, text)
    folder = Folder.at(root / "tokenizer" / "small-abc")
    with folder.staged("tokenizer.json") as path:
        tokenizer.save(str(path))
    output = Folder.at(root / "instances" / f"small-{kind}")
    vocab_size = tokenizer.get_vocab_size()
    task = ShardTask(config, corpus, folder, output, vocab_size, special_ids(tokenizer), "memo")
    specs = stage.specs_of(config, files)
    built = [task.build(spec) for spec in specs]
    summary = stage._summary(task, specs, built, output)
    record: dict[str, Any] = {
        "stage": "instances",
        "fingerprint": kind,
        "config": config.model_dump(mode="json"),
        "inputs": {"tokenizer": {"stage": "tokenizer", "fingerprint": "abc"}},
        "summary": summary.model_dump(mode="json"),
        "finished": "2026-01-01",
    }
    return artifact.finish(output, record, {})


def printed(found: Artifact, **wanted: Any) -> str:
    console = Console(file=io.StringIO(), width=10_000)
    settings = {"split": "train", "index": 3, "epoch": 0, "seed": 0} | wanted
    inspect(found, console=console, **settings)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_instance_of_every_kind_is_printed(tmp_path: Path, kind: str) -> None:
    found = build(tmp_path, kind)
    text = printed(found)
    assert f"{kind}, train: {InstancesSummary.of(found).instances.train:,} instances" in text
    assert "instance 3" in text
    expected = {
        "masked_pairs": r"B (follows|is from) .* document; \d+ tokens; \d+ to predict",
        "sentence_order": r"A and B are (in order|turned round); \d+ tokens",
        "causal": r"24 tokens to predict, the last is .*; parts of \d documents",
        "contexts": r"\S+ \S+ \S+  →  \S+",
        "windows": r"\d+ pairs: \S+→\S+",
    }
    assert re.search(expected[kind], text)


def test_masked_tokens_stand_beside_what_they_were(tmp_path: Path) -> None:
    found = build(tmp_path, "masked_pairs")
    reader = MaskedReader(found, "validation")
    batch = reader.batch(np.array([5]), np.array([2]), seed=7)
    tokenizer = load(Folder.at(tmp_path / "tokenizer" / "small-abc"))
    text = printed(found, split="validation", index=5, epoch=2, seed=7)
    masked = batch.masked
    for position, target, weight in zip(
        masked.positions[0], masked.targets[0], masked.weights[0], strict=True
    ):
        now = int(masked.ids[0, position])
        if weight and now != target:
            pair = f"{tokenizer.id_to_token(now)}({tokenizer.id_to_token(int(target))})"
            assert pair in text
    assert text.count("[MASK](") == int((masked.ids[0] == 4).sum())


def test_the_command_finds_the_newest_and_refuses_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path, "masked_pairs")
    assert main(["inspect", str(tmp_path / "instances"), "--index", "0"]) == 0
    assert "instance 0" in capsys.readouterr().out
    assert find(str(tmp_path / "instances")).fingerprint == "masked_pairs"
    for arguments, message in (
        ([str(tmp_path / "instances"), "--index", "99999"], "--index 99999: expected 0 to"),
        ([str(tmp_path / "nowhere")], "no artifact here"),
    ):
        assert main(["inspect", *arguments]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "tokenizer" / "small-abc" / "tokenizer.json").unlink()
    assert main(["inspect", str(tmp_path / "instances")]) == 2
    assert "the tokenizer of these instances is not at" in capsys.readouterr().err


def test_every_kind_has_a_sample_here() -> None:
    assert set(CONFIGS) | {"masked_blocks"} == set(KINDS)
