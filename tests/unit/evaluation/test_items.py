"""Items of suites, values and intervals against scipy and cases by hand; and examples that a model
has met before.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.cleaning import overlap
from rungwise.corpus.cleaning.overlap import find_texts
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.document import RawDocument
from rungwise.evaluation.comparison import compare
from rungwise.evaluation.comparison.compare import find_met
from rungwise.evaluation.suites import items as items_of
from rungwise.evaluation.suites.items import Items, contrast, estimate_items
from rungwise.finetune import FinetuneConfig
from rungwise.tasks.kinds.examples import Tagged, TaskInfo, write_examples
from tests.summaries import standing, task_of


def made(metric: str, numbers: np.ndarray, part: str = "") -> Items:
    names = [f"i{index}" for index in range(len(numbers))]
    groups = [f"g{index % 2}" for index in range(len(numbers))]
    return Items("suite", metric, names, groups, numbers, part)


def test_values_are_those_of_all_items_together() -> None:
    nats = np.array([[6.0, 2.0], [2.0, 2.0]])  # a mean over documents would be another
    assert estimate_items([made("perplexity", nats)]).mean == pytest.approx(math.exp(2.0))
    assert estimate_items([made("bits_per_byte", nats)]).mean == pytest.approx(2.0 / math.log(2))
    credit = np.array([[1.0, 1.0], [0.5, 1.0], [0.0, 1.0], [1.0, 1.0]])
    assert estimate_items([made("accuracy", credit)]).mean == pytest.approx(0.625)
    assert estimate_items([made("accuracy", credit).select_group("g0")]).mean == pytest.approx(0.5)


def test_an_interval_of_a_share_is_that_of_the_binomial() -> None:
    rng = np.random.default_rng(0)
    credit = np.stack([rng.random(2000) < 0.3, np.ones(2000)], axis=1).astype(float)
    got = estimate_items([made("accuracy", credit)])
    error = math.sqrt(got.mean * (1 - got.mean) / 2000)
    assert got.low == pytest.approx(got.mean - 1.96 * error, abs=0.1 * error + 5e-4)
    assert got.high == pytest.approx(got.mean + 1.96 * error, abs=0.1 * error + 5e-4)


def test_a_correlation_is_scipys_with_ties_and_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    gold = rng.integers(0, 6, 300).astype(float)
    pairs = np.stack([gold, gold + rng.normal(0, 2, 300)], axis=1)
    got = estimate_items([made("correlation", pairs)])
    expected: Any = stats.spearmanr(*pairs.T)
    assert got.mean == pytest.approx(expected.statistic)
    error = (1 - got.mean**2) / math.sqrt(300)
    assert got.high - got.low == pytest.approx(2 * 1.96 * error, rel=0.25)
    constant = np.stack([gold, np.zeros(300)], axis=1)
    assert estimate_items([made("correlation", constant)]).mean == 0.0


def test_what_is_hard_for_both_cancels_in_a_contrast() -> None:
    rng = np.random.default_rng(2)
    hardness = rng.gamma(2.0, 2.0, 200)
    first = made("perplexity", np.stack([hardness, np.ones(200)], axis=1))
    second = made("perplexity", np.stack([hardness - 0.1, np.ones(200)], axis=1))
    got = contrast([(1.0, [first]), (-1.0, [second])], log=True)
    assert (got.mean, got.low, got.high) == pytest.approx((0.1, 0.1, 0.1))
    assert estimate_items([first]).high - estimate_items([first]).low > 1.0
    of_all = contrast([(1.0, [first]), (-2.0, [second]), (1.0, [first])], log=True)
    assert of_all.mean == pytest.approx(0.2)


def test_only_items_of_both_are_compared_whatever_their_order() -> None:
    rng = np.random.default_rng(3)
    numbers = np.stack([rng.random(50), np.ones(50)], axis=1)
    first = made("accuracy", numbers)
    turned = Items("suite", "accuracy", first.names[::-1], first.groups[::-1], numbers[::-1])
    assert contrast([(1.0, [first]), (-1.0, [turned])]).mean == pytest.approx(0.0)
    fewer = Items("suite", "accuracy", first.names[:20], first.groups[:20], numbers[:20])
    got = contrast([(1.0, [first]), (-1.0, [fewer])])
    assert (got.mean, got.count) == (pytest.approx(0.0), 20)
    other = Items("suite", "accuracy", ["x"], [""], numbers[:1])
    with pytest.raises(DataError, match="no item of suite in common"):
        contrast([(1.0, [first]), (-1.0, [other])])


def test_seeds_widen_an_interval_that_items_alone_would_give() -> None:
    rng = np.random.default_rng(4)
    seeds = [
        made("accuracy", np.stack([rng.random(400) < share, np.ones(400)], axis=1).astype(float))
        for share in (0.4, 0.5, 0.6)
    ]
    alone, together = estimate_items(seeds[:1]), estimate_items(seeds)
    assert together.high - together.low > alone.high - alone.low


def test_parts_of_one_model_share_the_luck_of_its_pretraining() -> None:
    """Layer 2 minus layer 1: a lucky pretraining is as lucky in both."""
    rng = np.random.default_rng(6)

    def layer(mean: float) -> list[Items]:
        shares = (mean - 0.2, mean, mean + 0.2)
        return [
            made("accuracy", np.stack([rng.random(900) < share, np.ones(900)], 1).astype(float))
            for share in shares
        ]

    terms = [(1.0, layer(0.6)), (-1.0, layer(0.4))]
    together, apart = (contrast(terms, models=names) for names in (("elmo", "elmo"), ("a", "b")))
    assert together.mean == apart.mean
    assert together.low > 0 > apart.low


def test_parquet_keeps_every_item() -> None:
    rng = np.random.default_rng(5)
    written = [
        made("accuracy", rng.random((7, 2)), "layer 1"),
        made("correlation", rng.random((3, 2))),
    ]
    for before, after in zip(
        written, items_of.decode_items(items_of.encode_items(written)), strict=True
    ):
        assert (before.key, before.names, before.groups) == (after.key, after.names, after.groups)
        np.testing.assert_array_equal(before.numbers, after.numbers)
    assert items_of.decode_items(items_of.encode_items([])) == []


WORDS = st.lists(st.sampled_from("abc"), max_size=9)


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(st.lists(WORDS, max_size=3), max_size=3))
def test_a_text_is_found_if_all_its_runs_are_in_documents(
    texts: list[list[str]], documents: list[list[list[str]]]
) -> None:
    """By sets of strings; a run may cross sentences and not documents."""

    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[n : n + 3]) for n in range(len(words) - 2)}

    present = {run for d in documents for run in runs([word for s in d for word in s])}
    expected = [bool(runs(text)) and runs(text) <= present for text in texts]
    lines = [[", ".join(words).upper() for words in document] for document in documents]
    found = find_texts([" ".join(text) for text in texts], lines, 3)
    assert found.tolist() == expected


def test_large_texts_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_CHARACTERS_AT_ONCE", 10)
    documents = [[f"this is text number {n}", "and its second sentence"] for n in range(50)]
    assert find_texts(
        ["Is text number 49 and", "is text number 50 and"], documents, 5
    ).tolist() == [True, False]


SENTENCE = "EU rejects German call to boycott British lamb ."
CONLL = tuple(SENTENCE.split())


def test_examples_of_either_source_are_counted_and_the_rest_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus_folder = Folder.at(tmp_path / "corpus")
    text = "EU rejects German call to boycott British lamb."  # in one document that trains
    documents = [RawDocument(str(n), "x", (f"{text} {n}" * (n < 9), "More.")) for n in range(12)]
    rules = DocumentRules(minimum_characters=1, held_out_fraction=0.01)
    summary = write_corpus([documents], rules, "x", corpus_folder)
    corpus = standing("corpus", corpus_folder, summary)
    task_folder = Folder.at(tmp_path / "task")
    examples = [
        Tagged("a", CONLL, ("O",) * 9),
        Tagged("b", ("one", "word"), ("O",) * 2),
        Tagged("c", ("word",) * 9, ("O",) * 9),
    ]
    write_examples([examples[1]], task_folder, "train")
    task = task_of(task_folder, TaskInfo("tagging", ("O", "X"), False, "accuracy"))
    monkeypatch.setattr(compare, "chain", lambda pretrain: [corpus, pretrain])

    def variant(initialisation: Any) -> Any:
        settings = FinetuneConfig(initialisation=initialisation)
        return type("V", (), {"finetune": settings, "pretrains": (task,)})

    both = {"trained": variant("pretrained"), "random": variant("random")}
    found = find_met(both, task, examples)
    counts, fresh = found["trained"]
    assert (counts.training, counts.pretraining) == (1, 1)
    assert fresh.tolist() == [False, False, True]
    counts, fresh = found["random"]
    assert (counts.training, counts.pretraining) == (1, 0)
    assert fresh.tolist() == [True, False, True]

    def lost(_: Any) -> Any:
        raise DataError("not below the same root")

    monkeypatch.setattr(compare, "chain", lost)
    counts, fresh = find_met(both, task, examples)["trained"]
    assert counts.pretraining is None
    assert np.array_equal(fresh, found["random"][1])
