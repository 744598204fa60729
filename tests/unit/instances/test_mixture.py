"""Mixtures: shares kept at every position, every source read pass after pass, quotas exact."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.mixture import MixedOrder, compute_quotas
from rungwise.instances.order import Order, OrderConfig, ReadOrder, ShardShare, StreamOrder
from rungwise.instances.summary import InstancesSummary
from rungwise.training.config import FitConfig
from rungwise.training.feed import DataPhase
from rungwise.training.ray.gradient import check_fit, count_sources
from tests.training_runs import config, kill_and_resume, make_instances, run

CONFIGS = st.builds(OrderConfig, window_instances=st.integers(1, 80), lanes=st.integers(1, 9))
# Shards of some sources, each (source, rows), and the quota of each source that is read.
SHARDS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), min_size=1, max_size=12
).filter(lambda shards: any(rows for _, rows in shards))
FIBONACCI_SUM = 3.3599


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[MixedOrder, list[str], list[int], dict[str, int]]:
    shards = draw(SHARDS)
    sources, rows = [name for name, _ in shards], [rows for _, rows in shards]
    there = sorted({name for name, rows in shards if rows})
    read = draw(st.lists(st.sampled_from(there), min_size=1, unique=True))
    quotas = {name: draw(st.integers(1, 60)) for name in read}
    order = MixedOrder(np.array(rows), sources, quotas, draw(st.integers(0, 5)), draw(CONFIGS))
    return order, sources, rows, quotas


@given(mixtures())
@settings(max_examples=150)
def test_an_epoch_reads_the_quotas_and_no_row_twice_before_all_once(
    mixture: tuple[MixedOrder, list[str], list[int], dict[str, int]],
) -> None:
    order, sources, rows, quotas = mixture
    size = sum(quotas.values())
    located = order.locate(np.arange(3 * size))
    begins = np.cumsum(rows) - np.array(rows)
    assert np.array_equal(located.instances, begins[located.shards] + located.rows)
    names = np.array(sources)[located.shards]
    for epoch in range(3):
        read = names[epoch * size : (epoch + 1) * size].tolist()
        assert {name: read.count(name) for name in set(read)} == quotas
    for name in quotas:
        own = names == name
        held = sum(count for source, count in zip(sources, rows, strict=True) if source == name)
        # The source's own epochs key the masks: each is a pass over all of its instances.
        assert located.epochs[own].tolist() == (np.arange(own.sum()) // held).tolist()
        for begin in range(0, int(own.sum()), held):
            one_pass = located.instances[own][begin : begin + held]
            assert len(set(one_pass.tolist())) == len(one_pass)


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=40), st.data())
@settings(max_examples=150)
def test_every_source_is_near_its_share_at_every_position(
    quotas: list[int], data: st.DataObject
) -> None:
    sources = [f"{number:02d}" for number in range(len(quotas))]
    order = MixedOrder(
        np.full(len(quotas), 10), sources, dict(zip(sources, quotas, strict=True)), 0, OrderConfig()
    )
    total = sum(quotas)
    bound = 0.5 if len(quotas) == 2 else FIBONACCI_SUM / 2
    position = data.draw(st.integers(0, 3 * total))
    # A position is draw k of its source, which k draws of it come before.
    located = order.locate(np.arange(position, position + 40))
    (sources_40, draws_40) = order._draws(np.arange(position, position + 40))
    assert located.shards.tolist() == sources_40.tolist()
    for place, source, draw in zip(itertools.count(position), sources_40, draws_40, strict=False):
        assert abs(int(draw) - Fraction(place * quotas[source], total)) <= bound + 1e-3


@given(mixtures(), st.integers(1, 60), st.integers(1, 7), st.integers(0, 40))
@settings(max_examples=150)
def test_workers_share_a_step(
    mixture: tuple[MixedOrder, list[str], list[int], dict[str, int]],
    size: int,
    world: int,
    step: int,
) -> None:
    order = mixture[0]
    parts = [order.positions(step, ShardShare(size, rank, world)) for rank in range(world)]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(step * size, (step + 1) * size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def order_of_kind(kind: str, rows: Sequence[int], order: OrderConfig) -> Order:
    array, sources = np.array(rows), ["a", "b", "c"][: len(rows)] * len(rows)
    if kind == "lanes":
        return StreamOrder(array, 1, min(order.lanes, sum(rows)))
    if kind == "mixed":
        quotas = {
            name: quota
            for name, quota in (("a", 7), ("b", 30), ("c", 2))
            if sum(array[np.array(sources[: len(rows)]) == name])
        }
        return MixedOrder(array, sources[: len(rows)], quotas, 1, order)
    return ReadOrder(array, 1, order)


@pytest.mark.parametrize("kind", ["read", "mixed", "lanes"])
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any),
    CONFIGS,
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(1, 12),
)
@settings(max_examples=80)
def test_upcoming_shards_are_those_read_in_order_of_first_use(
    kind: str, rows: list[int], order: OrderConfig, world: int, step: int, ahead: int
) -> None:
    reading = order_of_kind(kind, rows, order)
    size = reading.streams if isinstance(reading, StreamOrder) else 6
    for rank in range(world):
        share = ShardShare(size, rank, world)
        read: dict[int, None] = {}
        for number in range(step, step + ahead):
            read |= dict.fromkeys(reading.locate(reading.positions(number, share)).shards.tolist())
        assert reading.upcoming_shards(step, ahead, share).tolist() == list(read)


@pytest.mark.parametrize(
    ("asked", "quotas"),
    [
        # 0.7 and 0.3 of 110 positions; only ratios count, and 0 is never read.
        ({"weights": {"books": 0.7, "wiki": 0.3}}, {"books": 77, "wiki": 33}),
        ({"weights": {"books": 7, "wiki": 3}}, {"books": 77, "wiki": 33}),
        ({"weights": {"books": 1, "wiki": 2}}, {"books": 37, "wiki": 73}),
        ({"weights": {"books": 0, "wiki": 2}}, {"wiki": 110}),
        ({"epochs": {"wiki": 2}}, {"books": 100, "wiki": 20}),
        ({"epochs": {"books": 0.555, "wiki": 0}}, {"books": 56}),
        ({}, {}),
    ],
)
def test_quotas_by_hand(asked: dict[str, Any], quotas: dict[str, int]) -> None:
    assert compute_quotas(OrderConfig(**asked), {"wiki": 10, "books": 100, "empty": 0}) == quotas


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"weights": {"books": 1, "web": 1}}, "weights names web, but .* are of books, wiki; use"),
        ({"epochs": {"web": 1}}, "epochs names web"),
        ({"weights": {"books": 1}}, "weights has no wiki; give each source a weight"),
        ({"weights": {"books": 0, "wiki": 0}}, "leaves out every source"),
        ({"epochs": {"books": 0, "wiki": 0}}, "leaves out every source"),
        ({"epochs": {"wiki": 1e-6}}, r"epochs\.wiki is 1e-06, less than one instance"),
    ],
)
def test_what_no_mixture_can_be_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compute_quotas(OrderConfig(**asked), {"wiki": 10, "books": 100})


# A run that reads one.

MIXED: dict[str, Any] = {"pretrain.order.epochs": {"books": 2, "wiki": 0.5}}


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_instances(
        tmp_path_factory.mktemp("instances"), documents=(10, 30), sources=("books", "wiki")
    )


def test_a_killed_run_over_a_mixture_ends_with_the_same_bits(
    instances: Artifact, tmp_path: Path
) -> None:
    resumed = kill_and_resume(config(**MIXED), instances, tmp_path)
    assert run(config(), instances, tmp_path / "plain").data_hash != resumed.data_hash


def test_what_was_read_is_told_by_source(instances: Artifact) -> None:
    there = InstancesSummary.of(instances).instances_by_source("train")
    assert there.keys() == {"books", "wiki"}
    epoch = 2 * there["books"] + round(there["wiki"] / 2)
    settings = config(**MIXED)
    pretrain = settings.pretrain.model_copy(update={"global_batch_size": epoch})
    settings = FitConfig(settings.model, pretrain)
    turn = DataPhase("instances", 0, instances)
    books, wiki = count_sources(settings, [turn], 3, 1_000_000)
    assert (books.source, books.epochs, books.instances) == ("books", 6.0, 6 * there["books"])
    assert wiki.instances == 3 * round(there["wiki"] / 2)
    assert wiki.epochs == wiki.instances / there["wiki"]
    assert 999_998 <= books.tokens + wiki.tokens <= 1_000_000
    # Two phases add up, each with its own instances.
    turns = [turn, DataPhase("longer_instances", 1, instances)]
    for source, whole in zip(
        count_sources(settings, turns, 3, 1_000_000), (books, wiki), strict=True
    ):
        assert source.epochs == pytest.approx(whole.epochs, rel=1e-12)
        assert source.model_copy(update={"epochs": whole.epochs}) == whole


def test_a_mixture_of_unknown_sources_is_refused_before_the_run(instances: Artifact) -> None:
    unknown: dict[str, Any] = {"pretrain.order.epochs": {"web": 2}}
    asked = config(**unknown)
    with pytest.raises(UserError, match="names web, but the training instances are of books, wiki"):
        check_fit(asked, {"instances": instances}, ComputeConfig(num_workers=1))
    check_fit(config(**MIXED), {"instances": instances}, ComputeConfig(num_workers=1))
