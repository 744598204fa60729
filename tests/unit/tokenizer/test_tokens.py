"""Tokens: what is encoded is the text as a whole, and what is read is what was written."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.stages.artifact import Artifact, SharedResults
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusFile, CorpusSummary
from rungwise.instances.building import ShardTask, list_orders
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.tokenizer import load_tokenizer, special_ids, token_building
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    CharacterConfig,
    TrainedConfig,
    WordConfig,
    WordPieceConfig,
)
from rungwise.tokenizer.token_stage import TokensConfig, TokensSummary
from rungwise.tokenizer.token_text import TokenisedText, TokensFile, write_tokens
from tests.corpora import made_up_documents, text_and_tokenizer
from tests.summaries import tokens_of

TOKENIZERS: list[TrainedConfig] = [
    WordPieceConfig(vocab_size=200, min_frequency=1),
    ByteBpeConfig(vocab_size=400, min_frequency=1),
    CharacterConfig(),
    WordConfig(),
]


@pytest.mark.parametrize("config", TOKENIZERS, ids=lambda config: config.kind)
def test_ids_are_those_of_the_text_as_a_whole(tmp_path: Path, config: TrainedConfig) -> None:
    corpus, tokenizer = text_and_tokenizer(tmp_path, [made_up_documents(20)], config)
    tokens = tokens_of(tmp_path / "tokens", corpus, tokenizer)
    reference = load_tokenizer(tokenizer.folder)
    for row, read in zip(
        TokensSummary.of(tokens).files, CorpusSummary.of(corpus).files, strict=True
    ):
        text = TokensFile(tokens.folder.local(row.file)).text()
        bounds = text.starts[text.first_sentence]
        documents = list(read_documents(corpus.folder, read.file))
        assert row.documents == len(documents) == len(text.documents)
        assert row.sentences == len(text.starts) - 1 == sum(len(d.sentences) for d in documents)
        for number, document in enumerate(documents):
            whole = reference.encode(" ".join(document.sentences), add_special_tokens=False)
            assert text.ids[bounds[number] : bounds[number + 1]].tolist() == whole.ids


def test_shares_of_the_text_are_nested_and_leave_what_is_held_out(tmp_path: Path) -> None:
    corpus, tokenizer = text_and_tokenizer(tmp_path, [made_up_documents(400)], WordConfig())
    drawn: dict[float, dict[str, dict[int, list[int]]]] = {}
    for share in (1.0, 0.5, 0.25, 0.125):
        tokens = tokens_of(tmp_path / str(share), corpus, tokenizer, TokensConfig(share=share))
        drawn[share] = {"train": {}, "validation": {}}
        for row in TokensSummary.of(tokens).files:
            text = TokensFile(tokens.folder.local(row.file)).text()
            bounds = text.starts[text.first_sentence].tolist()
            drawn[share][row.split] |= {
                document: text.ids[begin:end].tolist()
                for document, begin, end in zip(
                    text.documents.tolist(), bounds, bounds[1:], strict=False
                )
            }
    whole = drawn[1.0]
    for share, larger in ((0.125, 0.25), (0.25, 0.5), (0.5, 1.0)):
        assert drawn[share]["validation"] == whole["validation"]
        assert drawn[share]["train"].items() < drawn[larger]["train"].items()
        count, expected = len(drawn[share]["train"]), share * len(whole["train"])
        assert abs(count - expected) < 4 * (expected * (1 - share)) ** 0.5


DOCUMENTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=8)


@given(DOCUMENTS, st.booleans(), st.data())
@settings(max_examples=50)
def test_any_documents_of_a_file_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[list[int]],
    units: bool,
    data: st.DataObject,
) -> None:
    flat = [length for document in lengths for length in document]
    rng = np.random.default_rng(sum(flat))
    written = TokenisedText(
        rng.integers(0, 60_000, sum(flat)).astype(np.uint16),
        np.cumsum([0, *flat]),
        np.cumsum([0, *map(len, lengths)]),
        rng.integers(0, 1 << 63, len(lengths)).astype(np.uint64),
        rng.integers(0, 2, sum(flat)).astype(bool) if units else None,
    )
    path = tmp_path_factory.mktemp("file") / "tokens.arrow"
    write_tokens(written, path)
    file = TokensFile(path)
    assert (len(file), file.num_tokens) == (len(lengths), sum(flat))
    first = data.draw(st.integers(0, len(lengths) - 1))
    end = data.draw(st.integers(first + 1, len(lengths)))
    part = file.text(first, end, units)
    begin, stop = written.starts[written.first_sentence[[first, end]]]
    np.testing.assert_array_equal(part.ids, written.ids[begin:stop])
    np.testing.assert_array_equal(part.documents, written.documents[first:end])
    held = [length for document in lengths[first:end] for length in document]
    assert np.diff(part.starts).tolist() == held
    assert np.diff(part.first_sentence).tolist() == [len(d) for d in lengths[first:end]]
    if units:
        assert written.unit_starts is not None
        np.testing.assert_array_equal(part.unit_starts, written.unit_starts[begin:stop])


def test_a_file_of_one_document_borrows_the_other_sides_of_its_pairs(tmp_path: Path) -> None:
    # Two documents are held out, so one at least of the three that stand alone is not.
    alone = [[one] for one in made_up_documents(12, 60)[9:]]
    corpus, tokenizer = text_and_tokenizer(
        tmp_path, [made_up_documents(9), *alone], TOKENIZERS[0], held_out_fraction=0.01
    )
    tokens = tokens_of(tmp_path / "tokens", corpus, tokenizer)
    summary = TokensSummary.of(tokens)
    config = MaskedPairsConfig(sequence_length=32)
    orders = {order.file: order for order in list_orders(config, summary.files)}
    [row, *_] = [row for row in summary.files if row.split == "train" and row.documents == 1]
    order = orders[row.file]
    assert order.lenders
    assert order.file not in order.lenders
    special = special_ids(load_tokenizer(tokenizer.folder))
    task = ShardTask(config, tokens.folder, Folder.at(tmp_path / "out"), 200, special)
    row = task(order)
    assert (row["documents"], row["tokens_unused"]) == (1, 0)
    assert 0 < row["is_next"] < row["instances"]


def test_tokens_of_unchanged_text_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same tokenizer, proved on new text alone; with another one, none."""
    encoded: list[str] = []
    proved: list[str] = []
    sample = token_building.encoders.sample_corpus

    def note_proof(corpus: Folder, files: Sequence[CorpusFile], num_bytes: int) -> pa.StringArray:
        proved[:] = [each.file for each in files]
        return sample(corpus, files, num_bytes)

    monkeypatch.setattr(token_building.encoders, "sample_corpus", note_proof)
    encode = token_building.encode_file

    def note(corpus: Folder, file: CorpusFile, *others: Any) -> TokenisedText:
        encoded.append(file.file)
        return encode(corpus, file, *others)

    def encode_files(corpus: Artifact, tokenizer: Artifact, name: str) -> TokensSummary:
        encoded.clear()
        inputs = {"corpus": corpus, "tokenizer": tokenizer}
        place = Folder.at(tmp_path / "root" / "tokens" / name)
        return token_building.encode_corpus(TokensConfig(), inputs, place, Context())

    monkeypatch.setattr(token_building, "encode_file", note)
    ranges = [made_up_documents(20), made_up_documents(30), made_up_documents(40)]
    ranges = [
        [replace(one, id=f"{number}-{one.id}") for one in some]
        for number, some in enumerate(ranges)
    ]
    small, tokenizer = text_and_tokenizer(
        tmp_path / "small", ranges[:2], WordConfig(), deduplicate=False
    )
    grown, other = text_and_tokenizer(
        tmp_path / "grown", ranges, WordConfig(vocab_size=30), deduplicate=False
    )
    encode_files(small, tokenizer, "x-1")
    assert encoded == list(small.record["files"])
    again = encode_files(grown, tokenizer, "x-2")
    old = {file["sha256"] for file in small.record["files"].values()}
    changed = [name for name, file in grown.record["files"].items() if file["sha256"] not in old]
    assert encoded == changed
    assert proved == [name for name in changed if "train" in name]
    assert 0 < len(changed) < len(grown.record["files"])
    SharedResults.beside(Folder.at(tmp_path / "root" / "tokens" / "x-2")).folder.remove()
    assert encode_files(grown, tokenizer, "x-3") == again
    assert sorted(encoded) == sorted(grown.record["files"])
    encode_files(grown, other, "x-4")
    assert sorted(encoded) == sorted(grown.record["files"])
