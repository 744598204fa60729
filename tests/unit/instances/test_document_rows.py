"""Documents as rows: each is one row, in order; what is cut is counted."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.instances.kind import Facts
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import pad_rows
from rungwise.instances.texts import DocumentRowsConfig
from rungwise.tokenizer import SpecialIds
from tests.corpora import text_of

SPECIAL = SpecialIds(ids=(0, 3))
FACTS = Facts("s", 60_000, SPECIAL, 0)
LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 30), st.integers(1, 12), st.integers(1, 4), st.data())
@settings(max_examples=100)
def test_rows_are_those_of_a_slow_builder(
    lengths: list[list[int]], most: int, planned: int, bins: int, data: Any
) -> None:
    planned = min(planned, len(lengths))
    expected, begin = [], 10
    for document in lengths[:planned]:
        expected.append(list(range(begin, begin + sum(document)))[:most])
        begin += sum(document)
    config = DocumentRowsConfig(sequence_length=most)
    built = config.build(text_of(lengths), SPECIAL, np.random.default_rng(0), planned)
    counts = built.counts | config.check(built.shard, FACTS)
    whole = [sum(document) for document in lengths[:planned]]
    assert counts["instances"] == planned
    assert counts["text_tokens"] == sum(whole)
    assert counts["tokens_unused"] == sum(whole) - sum(map(len, expected))
    assert counts["documents_cut"] == sum(length > most for length in whole)
    assert built.shard.columns["document"].tolist() == list(range(10, 10 + planned))
    assert 0 < config.statistics(counts)["fill"] <= 1
    # In any order, each row as often as it is asked for.
    rows = np.array(data.draw(st.lists(st.integers(0, planned - 1), min_size=1, max_size=9)))
    padded = pad_rows(built.shard, rows, rows, config.width, 7)
    batch = config.batch(padded, rows, 0, Vocabulary(60_000, SPECIAL))

    def documents(part: Any) -> list[list[int]]:
        padding = np.arange(part.ids.shape[1]) >= part.lengths[:, None]
        assert not part.ids[padding].any()
        return [ids[:n].tolist() for ids, n in zip(part.ids, part.lengths.tolist(), strict=True)]

    assert documents(batch) == [expected[row] for row in rows]
    parts = list(batch.micro_batches(min(bins, len(rows)), False))
    assert sorted(row for part in parts for row in documents(part)) == sorted(documents(batch))
    assert all(part.ids.shape[1] < part.lengths.max() + 8 for part in parts)
    (fixed,) = batch.micro_batches(1, True)
    assert fixed.ids.shape == (len(rows), most)
