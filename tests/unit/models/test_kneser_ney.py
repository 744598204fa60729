"""The n-gram model: worked by hand, sums to one, counted in any parts, kept as tensors."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from rungwise.core.errors import DataError
from rungwise.models import ngram_model
from rungwise.models import ngram_model as ngram_tables
from rungwise.models.families import kneser_ney

START, END = 0, 1
HALVES = kneser_ney.Smoothing((0.5, 1.0, 1.5))
VOCAB_SIZE = 9
# Ids 7 and 8 never occur.
THRESHOLDS = ((0,), (0, 0, 1), (0, 1, 1, 2), (0, 3))
CORPORA = st.lists(st.lists(st.integers(2, 6), max_size=8), min_size=1, max_size=12)


def table_of(sentences: list[list[int]], order: int) -> ngram_tables.Table:
    closed = [[*sentence, END] for sentence in sentences]
    offsets = np.cumsum([0] + [len(sentence) for sentence in closed])
    ids = np.array([token for sentence in closed for token in sentence], np.uint16)
    return ngram_tables.count_ngrams(ids, offsets, order, START)


def same(left: ngram_tables.Table, right: ngram_tables.Table) -> bool:
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in [(left.ngrams, right.ngrams), (left.counts, right.counts)]
    )


def test_bigrams_worked_by_hand() -> None:
    """Two sentences, `a b` and `a a`; `c` is a word of the vocabulary that never occurs."""
    a, b, c = 2, 3, 4
    table = table_of([[a, b], [a, a]], 2)
    assert table.ngrams.tolist() == [[a, END], [b, END], [START, a], [a, a], [a, b]]
    assert table.counts.tolist() == [1, 1, 2, 1, 1]
    model = kneser_ney.estimate_model(table, 5, START, HALVES)
    # Continuations: a 2, END 2, b 1 of 5. Removed: 1 + 1 + 0.5 of 5, spread over four tokens.
    alone = {a: 0.325, END: 0.325, b: 0.225, c: 0.125}
    # After the start symbol `a` came twice: 1 of 2 is removed. After `a` three came once.
    first = {a: 0.5 + 0.5 * 0.325, END: 0.5 * 0.325, b: 0.5 * 0.225, c: 0.5 * 0.125}
    after_a = {token: (0.5 / 3 if token != c else 0) + 0.5 * p for token, p in alone.items()}
    for token in alone:
        scores = model.log_probabilities([[token], [a, token], [c, token]])
        expected = [[first[token]], [first[a], after_a[token]], [first[c], alone[token]]]
        for row, values in zip(scores, expected, strict=True):
            np.testing.assert_allclose(np.exp(row), values, rtol=1e-14)


def test_a_sentence_start_is_filled_up() -> None:
    assert table_of([[2, 3]], 4).ngrams.tolist() == [
        [START, 2, 3, END],
        [START, START, START, 2],
        [START, START, 2, 3],
    ]


def test_discounts_are_those_of_equation_26() -> None:
    """Words that occur 1, 1, 1, 1, 2, 2, 3 and 4 times, and 8 ends: n1 to n4 are 4, 2, 1, 1."""
    words = [2, 3, 4, 5, 6, 6, 7, 7, 8, 8, 8, 9, 9, 9, 9]
    rows = [words[i : i + 2] for i in range(0, 15, 2)]
    model = kneser_ney.estimate_model(table_of(rows, 1), 10, START)
    # Y = 4 / (4 + 2 · 2) = 1/2
    expected = [[1 - 2 / 2 * 2 / 4, 2 - 3 / 2 * 1 / 2, 3 - 4 / 2 * 1 / 1]]
    np.testing.assert_allclose(model.discounts, expected, rtol=1e-15)


@given(
    CORPORA,
    st.integers(1, 5),
    st.lists(st.lists(st.integers(1, VOCAB_SIZE - 1), max_size=6), max_size=4),
    st.sampled_from(THRESHOLDS),
)
def test_probabilities_sum_to_one(
    sentences: list[list[int]], order: int, histories: list[list[int]], prune: tuple[int, ...]
) -> None:
    """After any history: at the start, of the corpus, and with tokens that never occurred."""
    smoothing = dataclasses.replace(HALVES, prune=prune)
    model = kneser_ney.estimate_model(table_of(sentences, order), VOCAB_SIZE, START, smoothing)
    for history in [[], sentences[0], sentences[-1][:3], *histories]:
        texts = [[*history, token] for token in range(1, VOCAB_SIZE)]
        last = np.array([scores[-1] for scores in model.log_probabilities(texts)])
        assert np.exp(last).sum() == pytest.approx(1, abs=1e-12)


@given(CORPORA, st.integers(1, 5), st.integers(1, 7), st.randoms(use_true_random=False))
def test_any_partition_merges_to_the_whole(
    sentences: list[list[int]], order: int, parts: int, random: np.random.Generator
) -> None:
    """Shards of single sentences in any order, merged in a tree, or by parts of the hash."""
    whole = table_of(sentences, order)
    shards = [table_of([sentence], order) for sentence in sentences]
    random.shuffle(shards)
    tree = list(shards)
    while len(tree) > 1:
        tree = [ngram_tables.merge_tables(tree[i : i + 3]) for i in range(0, len(tree), 3)]
    assert same(tree[0], whole)
    by_hash = zip(*(ngram_tables.split_table(shard, parts) for shard in shards), strict=True)
    reduced = [ngram_tables.merge_tables(part) for part in by_hash]
    assert sum(map(len, reduced)) == len(whole), "an n-gram lies in two parts"
    assert same(ngram_tables.merge_tables(reduced), whole)


@given(CORPORA, st.integers(1, 5), st.integers(2, 5), st.sampled_from(THRESHOLDS))
def test_any_number_of_tasks_gives_the_same_bits(
    sentences: list[list[int]], order: int, parts: int, prune: tuple[int, ...]
) -> None:
    """Rows and columns of the grid, some of them empty."""
    smoothing = dataclasses.replace(HALVES, prune=prune)
    shards = [table_of(sentences[number::2], order) for number in range(2)]
    rows = list(zip(*(ngram_tables.split_table(shard, parts) for shard in shards), strict=True))
    one, many = (
        kneser_ney.estimate_tensors(each, VOCAB_SIZE, START, smoothing) for each in ([shards], rows)
    )
    assert one.keys() == many.keys()
    for name, array in one.items():
        assert array.tobytes() == many[name].tobytes(), name


def test_wide_ids_sort_as_narrow_ones() -> None:
    """Of 20 bits, five columns need two words of 64; of 3 bits, one."""
    rows = np.random.default_rng(0).integers(2, 7, (40, 5)).tolist()
    wide = [[token << 17 for token in row] for row in rows]
    closed = np.insert(np.array(wide, np.uint32), 5, END, axis=1)
    counted = ngram_tables.count_ngrams(closed.ravel(), np.arange(41) * 6, 5, START)
    narrow = table_of(rows, 5)
    assert len(narrow) > 100
    columns = np.where(narrow.ngrams > END, narrow.ngrams.astype(np.uint32) << 17, narrow.ngrams)
    assert counted.ngrams.tolist() == columns.tolist()
    assert counted.counts.tolist() == narrow.counts.tolist()


def test_tensors_hold_the_model() -> None:
    rows = np.random.default_rng(0).integers(2, 7, (40, 5)).tolist()
    first, second = (
        kneser_ney.estimate_model(table_of(r, 3), 9, START, HALVES) for r in (rows, rows[::-1])
    )
    data = save(first.to_tensors())
    assert data == save(second.to_tensors())
    again = ngram_model.NgramLanguageModel.from_tensors(load(data))
    assert again.order == 3
    assert again.to_tensors().keys() == first.to_tensors().keys()
    texts = [[2, 3, 8, END], [], [4, 4]]
    scores = first.log_probabilities(texts)
    assert [len(row) for row in scores] == [4, 0, 2]
    for row, expected in zip(again.log_probabilities(texts), scores, strict=True):
        assert row.tolist() == expected.tolist()
    assert again.log_probabilities([]) == []


def test_behind_an_end_symbol_another_text_begins() -> None:
    rows = np.random.default_rng(0).integers(2, 7, (40, 5)).tolist()
    model = kneser_ney.estimate_model(table_of(rows, 3), 9, START, HALVES)
    texts = [[2, 3, END], [], [4, END], [5, 6]]
    apart = np.concatenate(model.log_probabilities(texts))
    whole = [token for text in texts for token in text]
    [across] = model.log_probabilities([whole])
    assert (across != apart).any()
    first, _, again = dataclasses.replace(model, end_id=END).log_probabilities([whole, [], whole])
    assert first.tolist() == again.tolist() == apart.tolist()


@pytest.mark.parametrize("token", [-1, 9, START])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    model = kneser_ney.estimate_model(table_of([[2, 3]], 2), 9, START, HALVES)
    with pytest.raises(
        DataError, match=f"from 0 to 8 other than the start symbol 0, found {token}"
    ):
        model.log_probabilities([[2], [3, token]])


def test_a_corpus_that_gives_no_model_is_refused() -> None:
    with pytest.raises(DataError, match=r"1-grams enough .* found 2, 0, 0 and 0 .* larger corpus"):
        kneser_ney.estimate_model(table_of([[2]], 2), 9, START)
    with pytest.raises(DataError, match="empty corpus"):
        kneser_ney.estimate_model(table_of([], 2), 9, START)
    with pytest.raises(DataError, match="below vocab_size 5, found 7"):
        kneser_ney.estimate_model(table_of([[7]], 2), 5, START, HALVES)
    with pytest.raises(DataError, match=r"no start symbol .* at token 1"):
        table_of([[2, START]], 2)
