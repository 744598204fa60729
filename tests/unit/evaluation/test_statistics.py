"""Intervals cover what they say, resampling agrees with SciPy, error reduction with its table."""

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.cleaning import overlap
from rungwise.corpus.cleaning.overlap import find_texts
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.document import RawDocument
from rungwise.evaluation.comparison import compare
from rungwise.evaluation.comparison.compare import find_overlaps
from rungwise.evaluation.statistics import (
    Error,
    combine,
    draw_values,
    estimate,
    holm,
    leave_one_out,
    paired_difference,
    paired_draws,
)
from rungwise.evaluation.suites.items import Items, contrast, estimate_items
from rungwise.finetune import FinetuneConfig
from rungwise.tasks.kinds.examples import Tagged, TaskInfo, write_examples
from tests.bootstrap import paired_bootstrap
from tests.summaries import standing, task_of


def share(totals: NDArray[Any]) -> NDArray[Any]:
    """Right ones over all."""
    return totals[..., 0] / totals[..., 1]


def sums(right: NDArray[Any]) -> NDArray[Any]:
    """(S, N) of 0 and 1 as sums (S, N, 2)."""
    return np.stack([right, np.ones_like(right)], axis=-1).astype(float)


def answers(
    rng: np.random.Generator, seeds: int, examples: int, luck: float, better: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """What two variants got right: examples are hard for both alike, seeds lucky for each alone."""
    hard = 1.5 * rng.normal(size=examples)
    right = [
        shift + luck * rng.normal(size=(seeds, 1)) - hard + rng.normal(size=(seeds, examples)) > 0
        for shift in (better, 0.0)
    ]
    return sums(right[0]), sums(right[1])


def true_difference(luck: float, better: float) -> float:
    """Of `answers`, over all examples and seeds there could be."""
    return float(stats.norm.cdf(better / math.sqrt(1 + 1.5**2 + luck**2))) - 0.5


@pytest.mark.parametrize(
    ("seeds", "luck", "least", "most"),
    [
        (1, 0.0, 0.90, 0.98),  # one seed without luck: examples only
        (5, 0.3, 0.90, 0.99),  # as in fine-tuning: both kinds of noise
        (5, 0.0, 0.95, 1.00),  # noise of neither alone is counted twice: too wide
        (5, 1.5, 0.80, 0.94),  # five seeds with little else than luck: too narrow
    ],
)
def test_the_bootstrap_covers_the_truth(seeds: int, luck: float, least: float, most: float) -> None:
    rng = np.random.default_rng(seeds)
    truth = true_difference(luck, 0.2)
    covered = []
    for seed in range(200):
        first, second = answers(rng, seeds, 100, luck, 0.2)
        interval = paired_bootstrap(first, second, share, seed, resamples=300)
        covered.append(interval.low <= truth <= interval.high)
    assert least <= np.mean(covered) <= most


def test_variants_drawn_together_differ_as_each_pair_does_alone() -> None:
    rng = np.random.default_rng(5)
    variants = [*answers(rng, 2, 60, 0.2, 0.25), *answers(rng, 4, 60, 0.2, 0.25)]
    draws = draw_values(variants, share, 7, resamples=200)
    for (first, one), (second, other) in combinations(zip(variants, draws, strict=True), 2):
        runs = min(len(first), len(second))
        alone = paired_bootstrap(first[:runs], second[:runs], share, 7, 200, (0, 1), runs // 2)
        assert paired_draws(one, other, 7, (0, 1), runs // 2) == alone


def test_with_one_seed_it_is_scipys_paired_percentile_bootstrap() -> None:
    rng = np.random.default_rng(2)
    first, second = answers(rng, 1, 80, 0.0, 0.3)
    ours = paired_bootstrap(first, second, share, 0, resamples=20_000)
    theirs = stats.bootstrap(
        (first[0, :, 0], second[0, :, 0]),
        lambda a, b, axis=-1: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        paired=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(3),
    )
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.03 * width)
    assert ours.difference == pytest.approx((first - second)[0, :, 0].mean())


def test_chunks_of_resamples_are_no_part_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = answers(np.random.default_rng(7), 3, 50, 0.3, 0.2)
    whole = paired_bootstrap(first, second, share, 0, resamples=3000)
    monkeypatch.setattr("rungwise.evaluation.statistics._CHUNK", 5000)
    pieces = paired_bootstrap(first, second, share, 0, resamples=3000)
    assert (pieces.low, pieces.high) == pytest.approx((whole.low, whole.high), rel=1e-9)
    assert pieces.p == whole.p


def test_a_paired_difference_is_the_t_test_on_pairs() -> None:
    rng = np.random.default_rng(8)
    first, second = rng.normal(1, 1, 6), rng.normal(0, 1, 6)
    ours = paired_difference(list(first), list(second))
    theirs = stats.ttest_rel(first, second).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_two_groups_of_trainings_are_compared_as_by_welch() -> None:
    rng = np.random.default_rng(9)
    first, second = rng.normal(1, 1, 4), rng.normal(0, 3, 6)
    ours = combine(first.mean() - second.mean(), [list(first), list(-second)], [], 0)
    theirs: Any = stats.ttest_ind(first, second, equal_var=False)
    bounds = theirs.confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((bounds.low, bounds.high))
    assert 2 * min(ours.p_above(), ours.p_below()) == pytest.approx(theirs.pvalue)
    above: Any = stats.ttest_ind(first, second + 0.5, equal_var=False, alternative="greater")
    assert ours.p_above(0.5) == pytest.approx(above.pvalue)


@pytest.mark.parametrize(
    ("trainings", "of_examples"), [(2, 0.0), (2, 0.3), (3, 1.0), (5, 0.3), (5, 5.0)]
)
def test_a_p_is_too_small_no_more_often_than_it_says(trainings: int, of_examples: float) -> None:
    """The true difference is 1; also for the small p that many claims ask for."""
    rng = np.random.default_rng(trainings)
    contrasts = []
    for _ in range(2000):
        first, second = rng.normal(size=(2, trainings))
        mean = 1 + first.mean() - second.mean() + of_examples * rng.normal()
        contrasts.append(
            combine(mean, [list(first), list(-second)], [Error(of_examples, 999)], 1000)
        )
    ps = [2 * (c.p_above(1.0) if c.mean > 1 else c.p_below(1.0)) for c in contrasts]
    missed = sum(not each.low <= 1 <= each.high for each in contrasts)
    assert missed == sum(p < 0.05 for p in ps)
    for level in (0.05, 0.01):
        false = sum(p < level for p in ps)
        assert stats.binomtest(false, len(ps), level, alternative="greater").pvalue > 1e-4


def test_an_interval_ends_where_its_p_is_a_fortieth() -> None:
    got = combine(0.3, [[0.1, 0.5, 0.2], [0.1, 0.0]], [Error(0.1, 49), Error(0.14, 89)], 140)
    assert got.p_above(got.low) == pytest.approx(0.025)
    assert got.p_below(got.high) == pytest.approx(0.025)
    assert got.p_above(got.high) == pytest.approx(0.975)
    assert got.p_above(-1000.0) < 1e-9 < got.p_above(0.3) == pytest.approx(0.5)


def test_nothing_is_above_or_below_a_value_that_is_none() -> None:
    none = combine(math.nan, [[math.nan, 1.0]], [Error(math.nan, 9)], 10)
    assert (none.p_above(), none.p_below()) == (1.0, 1.0)
    certain = combine(0.3, [[0.3]], [Error(0.0, 9)], 10)  # one training, and all examples agree
    assert (certain.low, certain.high) == (0.3, 0.3)
    assert (certain.p_above(0.3), certain.p_below(0.3), certain.p_above(0.2)) == (1.0, 1.0, 0.0)


def test_pretrainings_are_drawn_where_seeds_share_their_luck() -> None:
    """Ten seeds of each of two pretrainings are two values, not twenty."""
    rng = np.random.default_rng(10)
    first = sums(rng.random((20, 200)) < np.repeat([0.9, 0.5], 10)[:, None])
    second = sums(rng.random((20, 200)) < 0.5)
    seeds = paired_bootstrap(first, second, share, 0, resamples=999)
    pretrainings = paired_bootstrap(first, second, share, 0, resamples=999, pretrainings=2)
    assert pretrainings.difference == pytest.approx(seeds.difference)
    assert seeds.low > 0 > pretrainings.low


def test_an_interval_ends_where_the_metric_does() -> None:
    near_one = estimate([0.99, 1.0, 0.95], (0.0, 1.0))
    assert near_one.high == 1.0
    assert near_one.low == estimate([0.99, 1.0, 0.95]).low
    apart = paired_difference([1.0, 0.2], [0.0, 0.1], (0.0, 1.0))
    assert (apart.low, apart.high) == (-1.0, 1.0)


def test_holm_gives_what_p_adjust_of_r_gives() -> None:
    # p.adjust(c(0.04, 0.01, 0.03, 0.005), "holm")
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_single_value_has_no_interval_and_none_is_refused() -> None:
    assert math.isnan(estimate([1.0]).low)
    with pytest.raises(ValueError, match="at least one value"):
        estimate([])


def test_examples_of_equal_weight_have_students_interval() -> None:
    values = np.random.default_rng(11).normal(1, 2, 7)
    error = leave_one_out(sums(values[None]), lambda totals: share(totals)[:, 0])
    low, high = stats.ttest_1samp(values, 0).confidence_interval()  # pyright: ignore[reportAttributeAccessIssue]
    bound = error.bound(0.025)
    assert (values.mean() - bound, values.mean() + bound) == pytest.approx((low, high))


def test_a_long_document_is_worth_as_many_as_its_share_of_the_text_allows() -> None:
    tokens = np.array([500.0, 100, 100, 100, 100, 100])
    nats = tokens * np.array([3.0, 3.5, 2.5, 3.1, 2.9, 3.3])
    documents = np.stack([nats, tokens], axis=1)[None]
    error = leave_one_out(documents, lambda totals: share(totals)[:, 0], tokens)
    shares, residuals = tokens / 1000, nats / tokens - nats.sum() / 1000
    # By hand: without a document the mean moves by its residual times its odds.
    moves = residuals * shares / (1 - shares)
    # Three more as heavy as the heaviest, beyond what it has in equal documents.
    missed = 3 * (0.5**2 / (shares**2).sum() - 1 / 6)
    assert error.size == pytest.approx(math.sqrt(5 / 6 * (moves**2).sum() * (1 + missed)))
    made = np.diag(shares / (1 - shares)) @ (np.eye(6) - shares)  # the moves of residuals
    values = np.linalg.eigvalsh(made @ made.T)
    assert error.freedom == pytest.approx(values.sum() ** 2 / (values**2).sum())
    alone = leave_one_out(documents[:, :1], lambda totals: share(totals)[:, 0], tokens[:1])
    unknown = combine(3.0, [], [alone], 1)
    assert math.isnan(unknown.estimate().low)
    assert unknown.p_above() == unknown.p_below() == 0.5


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
    monkeypatch.setattr(overlap, "_SLICE_CHARACTERS", 10)
    documents = [[f"this is text number {n}", "and its second sentence"] for n in range(50)]
    texts = ["Is text number 49 and", "is text number 50 and"]
    assert find_texts(texts, documents, 5).tolist() == [True, False]


SENTENCE = "EU rejects German call to boycott British lamb ."
CONLL = tuple(SENTENCE.split())


def test_only_new_examples_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    found = find_overlaps(both, task, examples)
    counts, fresh = found["trained"]
    assert (counts.training, counts.pretraining) == (1, 1)
    assert fresh.tolist() == [False, False, True]
    counts, fresh = found["random"]
    assert (counts.training, counts.pretraining) == (1, 0)
    assert fresh.tolist() == [True, False, True]

    def lost(_: Any) -> Any:
        raise DataError("not below the same root")

    monkeypatch.setattr(compare, "chain", lost)
    counts, fresh = find_overlaps(both, task, examples)["trained"]
    assert counts.pretraining is None
    assert np.array_equal(fresh, found["random"][1])
