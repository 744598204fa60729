"""`rungwise inspect`: what is printed is what is read."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rungwise.__main__ import main
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.instances import building
from rungwise.instances.building import ShardTask
from rungwise.instances.inspection import find_instances, show_instances
from rungwise.instances.masking import MaskingConfig
from rungwise.instances.pairs import MaskedPairsConfig, SentenceOrderConfig
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary
from rungwise.instances.texts import (
    CausalAndMaskedConfig,
    CausalConfig,
    CorruptedWordsConfig,
    DenoisedSpansConfig,
    DocumentRowsConfig,
    SentenceRunsConfig,
)
from rungwise.tokenizer import load_tokenizer
from rungwise.tokenizer.config import ByteBpeConfig, WordPieceConfig
from rungwise.tokenizer.token_stage import TokensSummary
from tests.corpora import made_up_documents, text_and_tokenizer
from tests.small_models import INSTANCES
from tests.summaries import finished, made_of, tokens_of

CONFIGS = {
    "masked_pairs": MaskedPairsConfig(sequence_length=32),
    "sentence_order": SentenceOrderConfig(sequence_length=32),
    "causal": CausalConfig(sequence_length=24),
    "corrupted_words": CorruptedWordsConfig(sequence_length=24),
    "sentence_runs": SentenceRunsConfig(sentences=6, sentence_length=12),
    "causal_and_masked": CausalAndMaskedConfig(sequence_length=32),
    "denoised_spans": DenoisedSpansConfig(sequence_length=56, masking=MaskingConfig()),
    "document_rows": DocumentRowsConfig(sequence_length=40),
}


def build(root: Path, kind: str) -> Artifact:
    """An instances artifact of made-up text, with the corpus and the tokenizer it was made of."""
    config = CONFIGS[kind]
    settings = (
        ByteBpeConfig(vocab_size=400, min_frequency=1)
        if kind == "causal"
        else WordPieceConfig(vocab_size=200, min_frequency=1)
    )
    corpus, tokenizer = text_and_tokenizer(root, [made_up_documents(60)], settings)
    tokens = tokens_of(root / "tokens" / "small-tttttttttttt", corpus, tokenizer)
    output, read = Folder.at(root / "instances" / f"small-{kind}"), TokensSummary.of(tokens)
    task = ShardTask(config, tokens.folder, output, read.vocab_size, read.special)
    rows = [task(order) for order in building.list_orders(config, read.files)]
    summary, keys = building._summary(config, read, rows), config.model_dump(mode="json")
    return finished("instances", output, summary, kind, inputs=made_of(tokens=tokens), config=keys)


def printed(found: Artifact, **wanted: Any) -> str:
    console = Console(file=io.StringIO(), width=10_000)
    settings = {"split": "train", "index": 3, "epoch": 0, "seed": 0} | wanted
    show_instances(found, console=console, **settings)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_instance_of_every_kind_is_printed(tmp_path: Path, kind: str) -> None:
    found = build(tmp_path, kind)
    text = printed(found)
    assert f"{kind}, train: {InstancesSummary.of(found).instances.train:,} instances" in text
    assert "instance 3" in text
    expected = {
        "masked_pairs": r"\[MASK\]\(.*\n\d+ tokens; a_length: \d+; is_next: [01]\n",
        "sentence_order": r"\[MASK\]\(.*\n\d+ tokens; a_length: \d+; in_order: [01]\n",
        "causal_and_masked": r"\n\[CLS\] .*\n\d+ tokens\n",
        "denoised_spans": r"\[MASK\] .* \[SEP\]\(\[MASK\]\) .*\(\[SEP\]\) \n\d+ tokens\n",
        "document_rows": r"\n40 tokens\n",
        "corrupted_words": r"\n(\S+\(\S+\) ){20,}.*\n25 tokens\n",
        "sentence_runs": r" \[SEP\] .*\n\d+ tokens; sentences: 6\n",
        "causal": r"\n25 tokens\n",
    }
    assert re.search(expected[kind], text), text


def test_masked_tokens_stand_beside_what_they_were(tmp_path: Path) -> None:
    found = build(tmp_path, "masked_pairs")
    batch: Any = InstanceReader(found, "validation").batch(np.array([5]), np.array([2]), seed=7)
    tokenizer = load_tokenizer(Folder.at(tmp_path / "tokenizer" / "small-t"))
    text = printed(found, split="validation", index=5, epoch=2, seed=7)
    for position, target, weight in zip(
        batch.masked_positions[0], batch.masked_ids[0], batch.masked_weights[0], strict=True
    ):
        now = int(batch.ids[0, position])
        if weight and now != target:
            pair = f"{tokenizer.id_to_token(now)}({tokenizer.id_to_token(int(target))})"
            assert pair in text
    assert text.count("[MASK](") == int((batch.ids[0] == 4).sum())


def test_the_command_finds_the_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path, "masked_pairs")
    assert main(["inspect", str(tmp_path / "instances"), "--index", "0"]) == 0
    assert "instance 0" in capsys.readouterr().out
    assert find_instances(str(tmp_path / "instances")).fingerprint == "masked_pairs"
    for arguments, message in (
        ([str(tmp_path / "instances"), "--index", "99999"], "--index 99999: expected 0 to"),
        ([str(tmp_path / "nowhere")], "no artifact here"),
    ):
        assert main(["inspect", *arguments]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "tokenizer" / "small-t" / "tokenizer.json").unlink()
    assert main(["inspect", str(tmp_path / "instances")]) == 2
    assert "the tokenizer of these instances is not at" in capsys.readouterr().err


def test_every_kind_has_a_sample_here() -> None:
    assert set(CONFIGS) | {"masked_blocks", "labelled_pairs", "aligned_lines"} == set(INSTANCES)
