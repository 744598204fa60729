"""Intervals cover what they say, resampling agrees with SciPy, error reduction with its table."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rungwise.evaluation.statistics import (
    Error,
    Estimate,
    combine,
    draw_values,
    error_reduction,
    estimate,
    holm,
    leave_one_out,
    paired_bootstrap,
    paired_difference,
    paired_draws,
    sign_agreement,
)


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


@pytest.mark.parametrize("count", [3, 5, 20])
def test_students_interval_covers_the_mean_in_95_of_100_samples(count: int) -> None:
    rng = np.random.default_rng(count)
    estimates = [estimate(list(rng.normal(1.0, 2.0, size=count))) for _ in range(4000)]
    covered = np.mean([one.low <= 1.0 <= one.high for one in estimates])
    assert abs(covered - 0.95) < 0.012  # 3.5 standard errors of 4,000 trials


@pytest.mark.parametrize(
    ("seeds", "luck", "least", "most"),
    [
        (1, 0.0, 0.90, 0.98),  # one seed without luck: examples only
        (5, 0.3, 0.90, 0.99),  # as in fine-tuning: both kinds of noise
        (5, 0.0, 0.95, 1.00),  # noise of neither alone is counted twice: too wide
        (5, 1.5, 0.80, 0.94),  # five seeds with little else than luck: too narrow
    ],
)
def test_the_bootstraps_interval_covers_the_true_difference(
    seeds: int, luck: float, least: float, most: float
) -> None:
    rng = np.random.default_rng(seeds)
    truth = true_difference(luck, 0.2)
    covered = []
    for seed in range(200):
        first, second = answers(rng, seeds, 100, luck, 0.2)
        interval = paired_bootstrap(first, second, share, seed, resamples=300)
        covered.append(interval.low <= truth <= interval.high)
    assert least <= np.mean(covered) <= most


def test_p_is_below_5_percent_exactly_where_the_interval_leaves_0_out() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for seed in range(60):
        first, second = answers(rng, 3, 120, 0.2, 0.25)
        difference = paired_bootstrap(first, second, share, seed, resamples=999)
        outside = difference.low > 0 or difference.high < 0
        if abs(difference.p - 0.05) > 0.005:  # at the very edge quantiles are interpolated
            assert outside == (difference.p < 0.05)
        seen.add(outside)
        assert 0 < difference.p <= 1
    assert seen == {True, False}


def test_p_is_near_uniform_if_there_is_no_difference() -> None:
    rng = np.random.default_rng(1)
    p_values = [
        paired_bootstrap(*answers(rng, 1, 150, 0.0, 0.0), share, seed, resamples=400).p
        for seed in range(300)
    ]
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.09
    assert 0.4 <= np.mean(np.array(p_values) < 0.5) <= 0.6


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


def test_pairing_narrows_the_interval_as_far_as_systems_stumble_over_the_same_examples() -> None:
    rng = np.random.default_rng(4)
    first, second = answers(rng, 1, 400, 0.0, 0.2)
    shuffled = second[:, rng.permutation(400)]
    paired = paired_bootstrap(first, second, share, 0, resamples=4000)
    unpaired = paired_bootstrap(first, shuffled, share, 0, resamples=4000)
    assert paired.difference == unpaired.difference
    ratio = (paired.high - paired.low) / (unpaired.high - unpaired.low)
    # Var(a - b) = Var a + Var b - 2 Cov(a, b): what pairing takes away is the correlation.
    correlation = np.corrcoef(first[0, :, 0], second[0, :, 0])[0, 1]
    assert ratio == pytest.approx(math.sqrt(1 - correlation), abs=0.05)


def test_seeds_are_drawn_too() -> None:
    rng = np.random.default_rng(5)
    same = np.repeat(sums(rng.random((1, 200)) < 0.7), 4, axis=0)
    worse = same.copy()
    worse[:2, :100, 0] = 0  # two of four seeds failed on half of the examples
    with_luck = paired_bootstrap(same, worse, share, 0, resamples=2000)
    without = paired_bootstrap(
        same, np.broadcast_to(worse.mean(axis=0), worse.shape), share, 0, resamples=2000
    )
    assert with_luck.difference == pytest.approx(without.difference)
    assert with_luck.high - with_luck.low > 2 * (without.high - without.low)


def test_a_metric_that_is_no_mean_is_made_of_resampled_sums() -> None:
    def f1(totals: NDArray[Any]) -> NDArray[Any]:
        right, guessed, true = np.moveaxis(totals, -1, 0)
        return 2 * right / (guessed + true)

    rng = np.random.default_rng(6)
    true = rng.random(300) < 0.4
    counts = []
    for flips in (0.1, 0.3):
        guessed = true ^ (rng.random(300) < flips)
        counts.append(np.stack([true & guessed, guessed, true], axis=-1)[None].astype(float))
    difference = paired_bootstrap(counts[0], counts[1], f1, 0, resamples=2000)
    by_hand = f1(counts[0][0].sum(axis=0)) - f1(counts[1][0].sum(axis=0))
    assert difference.difference == pytest.approx(float(by_hand))
    assert 0 < difference.low < difference.difference < difference.high
    assert difference.p < 0.01


def test_chunks_of_resamples_are_no_part_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = answers(np.random.default_rng(7), 3, 50, 0.3, 0.2)
    whole = paired_bootstrap(first, second, share, 0, resamples=3000)
    again = paired_bootstrap(first, second, share, 0, resamples=3000)
    monkeypatch.setattr("rungwise.evaluation.statistics._CHUNK", 5000)
    pieces = paired_bootstrap(first, second, share, 0, resamples=3000)
    assert whole == again
    assert pieces.low == pytest.approx(whole.low, rel=1e-9)
    assert pieces.high == pytest.approx(whole.high, rel=1e-9)
    assert pieces.p == whole.p


@pytest.mark.parametrize(
    ("first", "second"), [((2, 5, 1), (2, 6, 1)), ((5, 1), (5, 1)), ((2, 0, 1), (2, 0, 1))]
)
def test_arrays_that_are_no_pairs_are_refused(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="of one shape with at least one example"):
        paired_bootstrap(np.ones(first), np.ones(second), lambda t: t[..., 0], 0)


def test_error_reduction_of_a_system_without_errors_is_refused() -> None:
    assert error_reduction(0.8, 0.7) == pytest.approx(-0.5)
    with pytest.raises(ValueError, match="no errors"):
        error_reduction(1.0, 1.0)


def test_signs_agree_only_where_the_interval_leaves_0_out() -> None:
    assert sign_agreement(-0.5, Estimate(-0.3, -0.5, -0.1, 5)) == "agrees"
    assert sign_agreement(-0.5, Estimate(0.3, 0.1, 0.5, 5)) == "disagrees"
    assert sign_agreement(-0.5, Estimate(-0.3, -0.7, 0.1, 5)) == "unresolved"
    assert sign_agreement(0.0, Estimate(0.3, 0.1, 0.5, 5)) == "unresolved"
    assert sign_agreement(0.5, estimate([0.3])) == "unresolved"


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


@pytest.mark.parametrize("trainings", [2, 3, 5])
@pytest.mark.parametrize("of_examples", [0.0, 0.3, 1.0, 5.0])
def test_a_p_is_too_small_no_more_often_than_it_says(trainings: int, of_examples: float) -> None:
    """The true difference is 1, the error of a training 1, that of the test set `of_examples`: also
    for the small p that many claims ask for, where a few trainings happen to agree."""
    rng = np.random.default_rng(trainings)
    contrasts = []
    for _ in range(2000):
        first, second = rng.normal(size=(2, trainings))
        mean = 1 + first.mean() - second.mean() + of_examples * rng.normal()
        contrasts.append(
            combine(mean, [list(first), list(-second)], [Error(of_examples, 999)], 1000)
        )
    ps = [2 * min(each.p_above(1.0), each.p_below(1.0)) for each in contrasts]
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


def test_an_interval_is_students_t_worked_by_hand() -> None:
    interval = estimate([1.0, 2.0, 3.0, 4.0])
    # mean 2.5, standard deviation 1.29099, t(0.975, 3) = 3.18245
    assert interval.mean == 2.5
    assert interval.high - interval.mean == pytest.approx(3.182446 * 1.290994 / 2, rel=1e-5)
    assert interval.mean - interval.low == pytest.approx(interval.high - interval.mean)


def test_an_interval_ends_where_the_metric_does() -> None:
    near_one = estimate([0.99, 1.0, 0.95], (0.0, 1.0))
    assert near_one.high == 1.0
    assert near_one.low == estimate([0.99, 1.0, 0.95]).low
    apart = paired_difference([1.0, 0.2], [0.0, 0.1], (0.0, 1.0))
    assert (apart.low, apart.high) == (-1.0, 1.0)


def test_the_bootstraps_interval_ends_where_the_difference_of_a_metric_does() -> None:
    # Seeds differ by 1 and 0.4; the luck of seeds, stretched, reaches beyond 1.
    first, second = sums(np.ones((2, 10))), sums(np.zeros((2, 10)))
    second[1, :6, 0] = 1
    assert paired_bootstrap(first, second, share, 0, resamples=999).high > 1
    clipped = paired_bootstrap(first, second, share, 0, resamples=999, within=(0.0, 1.0))
    assert clipped.high == 1
    assert clipped.difference == pytest.approx(0.7)
    mirrored = paired_bootstrap(second, first, share, 0, resamples=999, within=(0.0, 1.0))
    assert mirrored.low == -1


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
    assert error.size == pytest.approx(math.sqrt(5 / 6 * (moves**2).sum()))
    made = np.diag(shares / (1 - shares)) @ (np.eye(6) - shares)  # the moves of residuals
    values = np.linalg.eigvalsh(made @ made.T)
    assert error.freedom == pytest.approx(values.sum() ** 2 / (values**2).sum())
    alone = leave_one_out(documents[:, :1], lambda totals: share(totals)[:, 0], tokens[:1])
    unknown = combine(3.0, [], [alone], 1)
    assert math.isnan(unknown.estimate().low)
    assert unknown.p_above() == unknown.p_below() == 0.5
