"""Packed causal blocks: every token predicted once, nothing predicted from another document."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.errors import DataError
from rungwise.instances.causal import CausalConfig
from rungwise.instances.kind import Facts
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import pad_rows
from rungwise.tokenizer import SpecialIds
from tests.corpora import text_of

END = 9
SPECIAL = SpecialIds(end=END, ids=(END,))
FACTS = Facts("s", 1000, SPECIAL, 0)
DOCUMENTS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def batch_of(lengths: list[int], size: int) -> Any:
    config = CausalConfig(sequence_length=size)
    shard = config.build(
        text_of([[length] for length in lengths]), SPECIAL, np.random.default_rng(0)
    ).shard
    everything = np.arange(len(shard))
    rows = pad_rows(shard, everything, everything, config.width, 0)
    return config.batch(rows, everything, 0, Vocabulary(1000, SPECIAL))


def test_two_documents_worked_by_hand() -> None:
    """[END] 10 11 12 [END] 13 14 [END] in blocks of three."""
    batch = batch_of([3, 2], 3)
    assert batch.ids.tolist() == [[9, 10, 11], [12, 9, 13], [14, 9, 0]]
    assert batch.targets.tolist() == [[10, 11, 12], [9, 13, 14], [9, 0, 0]]
    assert batch.weights.tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert batch.document.tolist() == [[1, 1, 1], [0, 1, 1], [0, 1, 1]]
    assert batch.positions.tolist() == [[0, 1, 2], [0, 0, 1], [0, 0, 1]]


@given(DOCUMENTS, st.integers(2, 40))
@settings(max_examples=200)
def test_every_token_is_predicted_once_from_its_own_document(lengths: list[int], size: int) -> None:
    batch = batch_of(lengths, size)
    real = batch.weights > 0
    predicted = batch.targets[real].tolist()
    expected, token = [], 10
    for length in lengths:
        expected += [*range(token, token + length), END]
        token += length
    assert predicted == expected
    # What a position may see, with its target, is a run of one document from where the block or
    # the document begins.
    owner = {END: -1} | {
        token: number
        for number, (begin, length) in enumerate(
            zip(10 + np.cumsum([0, *lengths[:-1]]), lengths, strict=True)
        )
        for token in range(int(begin), int(begin) + length)
    }
    for row, position in np.argwhere(real):
        seen = batch.document[row] == batch.document[row, position]
        seen[position + 1 :] = False
        assert seen.sum() == batch.positions[row, position] + 1
        owners = {owner[token] for token in batch.ids[row, seen].tolist()} - {-1}
        owners |= {owner[int(batch.targets[row, position])]} - {-1}
        assert len(owners) <= 1


@given(DOCUMENTS, st.integers(2, 40))
@settings(max_examples=50)
def test_the_contract_holds(lengths: list[int], size: int) -> None:
    config = CausalConfig(sequence_length=size)
    built = config.build(
        text_of([[length] for length in lengths]), SPECIAL, np.random.default_rng(0)
    )
    counts = config.check(built.shard, FACTS)
    assert counts["predicted"] == sum(lengths) + len(lengths)
    assert counts["ends"] == len(lengths) + 1
    assert config.statistics(counts | built.counts)["fill"] <= 1


def test_a_broken_stream_is_caught() -> None:
    config = CausalConfig(sequence_length=4)
    shard = config.build(text_of([[9], [9]]), SPECIAL, np.random.default_rng(0)).shard
    ids = shard.ids.copy()
    ids[5] = 77
    with pytest.raises(DataError, match="begin with the last token of the one before"):
        config.check(dataclasses.replace(shard, ids=ids), FACTS)
    ids = shard.ids.copy()
    ids[0] = 77
    with pytest.raises(DataError, match="framed by end symbols"):
        config.check(dataclasses.replace(shard, ids=ids), FACTS)
