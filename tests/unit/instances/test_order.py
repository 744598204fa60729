"""The order of reading: a permutation of every epoch, or streams of contiguous text."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rungwise.core.randomness import bits
from rungwise.instances import order
from rungwise.instances.order import (
    OrderConfig,
    ReadOrder,
    ShardShare,
    StreamOrder,
    held_out_streams,
)

ROWS = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(lambda rows: sum(rows) > 0)
CONFIGS = st.builds(OrderConfig, window_instances=st.integers(1, 80), lanes=st.integers(1, 9))


def published_indices(positions: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """The order of the first published results, kept word for word: it must never change."""
    epoch, place = np.divmod(positions.astype(np.int64), count)
    return published_permute(place, epoch, count, seed)


def published_permute(
    places: NDArray[np.int64], epoch: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    value = places.astype(np.uint64)
    keys = [bits(seed, epoch, turn) for turn in range(4)]
    outside = np.ones(value.shape, dtype=bool)
    while outside.any():
        left, right = value[outside] >> shift, value[outside] & mask
        for key in keys:
            left, right = right, left ^ (bits(key[outside], right) & mask)
        value[outside] = (left << shift) | right
        outside = value >= np.uint64(count)
    return value.astype(np.int64)


def line_of(rows: list[int], seed: int, epoch: int) -> list[list[int]]:
    """(instance, shard, row) of an epoch end to end, by lists: the definition, spelt out."""
    shards = sorted(range(len(rows)), key=lambda shard: int(bits(seed, epoch, 0x5A4D, shard)))
    begin = np.concatenate([[0], np.cumsum(rows)])
    return [[int(begin[s]) + row, s, row] for s in shards for row in range(rows[s])]


def whole_epoch(rows: list[int], seed: int, epoch: int, config: OrderConfig) -> list[list[int]]:
    """(instance, shard, row) at every place of an epoch, by lists: the definition, spelt out."""
    line, lanes = line_of(rows, seed, epoch), []
    for number, part in enumerate(np.array_split(np.arange(len(line)), config.lanes)):
        lane: list[list[int]] = []
        for window, first in enumerate(range(0, len(part), config.window_instances)):
            places = part[first : first + config.window_instances]
            key = np.full(len(places), bits(seed, epoch, 0x77D0, number, window))
            moved = published_permute(np.arange(len(places)), key, len(places), seed)
            lane.extend(line[place] for place in places[moved])
        lanes.append(lane)
    return [lanes[q % config.lanes][q // config.lanes] for q in range(len(line))]


@given(ROWS, CONFIGS, st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=60)
def test_places_are_as_defined(rows: list[int], config: OrderConfig, seed: int, epoch: int) -> None:
    count = sum(rows)
    places = np.arange(count) + epoch * count
    found = ReadOrder(np.array(rows), seed, config).locate(places)
    if config.lanes == 1 and count <= config.window_instances:
        expected = published_indices(places, count, seed).tolist()
        assert found.instances.tolist() == expected
    else:
        expected = whole_epoch(rows, seed, epoch, config)
        assert np.stack([found.instances, found.shards, found.rows], 1).tolist() == expected
    assert found.epochs.tolist() == [epoch] * count


@given(ROWS, CONFIGS, st.integers(1, 200), st.integers(1, 20), st.integers(0, 60))
@settings(max_examples=100)
def test_workers_share_a_step_without_gap_or_overlap(
    rows: list[int], config: OrderConfig, size: int, world: int, step: int
) -> None:
    reading = ReadOrder(np.array(rows), 0, config)
    parts = [reading.positions(step, ShardShare(size, rank, world)) for rank in range(world)]
    together = np.concatenate(parts)
    assert np.sort(together).tolist() == list(range(step * size, (step + 1) * size))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    # Sorted by lane, so that a rank holds whole lanes but for the two at its ends.
    lanes = together % sum(rows) % config.lanes
    assert (np.diff(lanes) >= 0).all()
    if config.lanes == 1:
        assert together.tolist() == sorted(together)
    assert all(
        (np.diff(part[part % sum(rows) % config.lanes == lane]) > 0).all()
        for part in parts
        for lane in range(config.lanes)
    )


@pytest.mark.parametrize(("world", "ahead"), [(1, 7), (2, 60), (3, 1), (8, 7)])
def test_a_worker_touches_a_bounded_number_of_shards(world: int, ahead: int) -> None:
    """Lanes a rank holds, times windows a lane enters, times shards a window lies in."""
    rows = np.random.default_rng(0).integers(90, 130, size=60)
    batch, lanes, window = 64, 16, 40
    reading = ReadOrder(rows, 3, OrderConfig(window_instances=window, lanes=lanes))
    steps = (reading.count // batch // ahead - 1) * ahead
    lanes_of_a_rank = -(-lanes // world) + 1
    windows_of_a_lane = -(-(ahead * batch // lanes) // window) + 1
    shards_of_a_window = window // 90 + 2
    bound = lanes_of_a_rank * windows_of_a_lane * shards_of_a_window
    for rank in range(world):
        for first in range(0, steps, ahead):
            positions = np.concatenate(
                [reading.positions(first + n, ShardShare(batch, rank, world)) for n in range(ahead)]
            )
            assert len(np.unique(reading.locate(positions).shards)) <= bound


def test_epochs_are_reshuffled_and_neighbours_are_unrelated() -> None:
    rows = np.full(40, 500)
    reading = ReadOrder(rows, 0, OrderConfig(window_instances=1000, lanes=8))
    count = reading.count
    first, second = reading.locate(np.arange(count)), reading.locate(np.arange(count, 2 * count))
    assert (first.instances == second.instances).mean() < 0.01
    assert (first.shards == second.shards).mean() < 0.05
    # Rows that are read one after another are no neighbours in their files, nor is the place of a
    # row in its file that of its reading: correlations within five sigma of none.
    assert (np.abs(np.diff(first.instances)) == 1).mean() < 0.005
    sigma = 1 / math.sqrt(count)
    assert abs(np.corrcoef(np.arange(count), first.rows)[0, 1]) < 5 * sigma
    assert abs(np.corrcoef(first.rows[:-1], first.rows[1:])[0, 1]) < 5 * sigma
    assert abs(np.corrcoef(first.rows, second.rows)[0, 1]) < 5 * sigma


@pytest.mark.parametrize("config", [OrderConfig(), OrderConfig(lanes=1024)])
def test_places_among_ten_billion_are_found_without_storing_them(config: OrderConfig) -> None:
    reading = ReadOrder(np.full(25_000, 400_000), 1, config)
    assert reading.count == 10_000_000_000
    sample = np.random.default_rng(0).integers(0, 2 * reading.count, size=20_000)
    found = reading.locate(sample)
    assert np.array_equal(found.instances, found.shards * 400_000 + found.rows)
    assert ((found.rows >= 0) & (found.rows < 400_000)).all()
    for epoch in (0, 1):
        here = found.epochs == epoch
        assert len(np.unique(found.instances[here])) == len(np.unique(sample[here]))
    whole = order.permute(np.array([0, 1, 9_999_999_999]), np.zeros(3, int), 10**10, 1)
    assert np.array_equal(
        whole, published_permute(np.array([0, 1, 10**10 - 1]), np.zeros(3, int), 10**10, 1)
    )


def test_splitmix64_gives_the_published_numbers() -> None:
    """The first output for state 0 is 16294208416658607535 (Vigna's reference, splitmix64.c)."""
    assert int(bits(0)) == 16294208416658607535


STREAM_ROWS = st.lists(st.integers(0, 25), min_size=1, max_size=8)


@given(STREAM_ROWS, st.integers(1, 9), st.integers(0, 3), st.integers(1, 5))
@settings(max_examples=60)
def test_streams_are_contiguous_text(rows: list[int], streams: int, seed: int, world: int) -> None:
    assume(sum(rows) >= streams)
    order = StreamOrder(np.array(rows), seed, streams)
    opens = set((np.cumsum(rows) - rows).tolist())
    assert order.steps_per_epoch == sum(rows) // streams
    for epoch in range(2):
        line = [instance for instance, _, _ in line_of(rows, seed, epoch)]
        before: list[int] = []
        read: list[int] = []
        for block in range(order.steps_per_epoch):
            step = epoch * order.steps_per_epoch + block
            parts = [
                order.locate(order.positions(step, ShardShare(streams, rank, world)))
                for rank in range(world)
            ]
            for rank, part in enumerate(parts):
                assert len(part.instances) == len(ShardShare(streams, rank, world).rows)
                assert (part.epochs == epoch).all()
                begins = np.cumsum(rows) - rows
                assert (begins[part.shards] + part.rows == part.instances).all()
            instances = [row for part in parts for row in part.instances.tolist()]
            continues = [
                flag for part in parts if part.continues is not None for flag in part.continues
            ]
            # Stream l is the l-th S blocks of the line.
            assert instances == line[block :: order.steps_per_epoch][:streams]
            for stream, (row, goes_on) in enumerate(zip(instances, continues, strict=True)):
                assert goes_on == (block > 0 and row not in opens)
                if goes_on:
                    assert row == before[stream] + 1
            before = instances
            read += instances
        assert len(read) == len(set(read))
        assert sum(rows) - len(read) == sum(rows) % streams < streams


@given(STREAM_ROWS, st.integers(1, 12), st.integers(0, 100), st.integers(1, 5))
@settings(max_examples=80)
def test_held_out_streams_begin_evenly_and_are_the_same_for_any_number_of_workers(
    rows: list[int], streams: int, most: int, world: int
) -> None:
    count = min(most, sum(rows))
    array = np.array(rows)
    opens = set((np.cumsum(rows) - rows).tolist())
    texts: dict[int, list[int]] = {}
    for rank in range(world):
        mine = ShardShare(streams, rank, world).rows
        for step, (stream, instances, continues) in enumerate(
            held_out_streams(array, count, ShardShare(streams, rank, world))
        ):
            for number, row, goes_on in zip(stream, instances, continues, strict=True):
                assert number < len(mine)
                text = texts.setdefault(mine[number], [])
                assert len(text) == step
                assert goes_on == (step > 0 and row not in opens)
                text.append(int(row))
    # Streams one after the other are the text, and what is left out of it lies evenly between them.
    read = [row for stream in sorted(texts) for row in texts[stream]]
    assert len(read) == count
    assert read == sorted(set(read))
    assert all(text == list(range(text[0], text[0] + len(text))) for text in texts.values())
    left_out = sum(rows) - count
    for stream, text in texts.items():
        assert text[0] == count * stream // streams + left_out * stream // streams
    sizes = [len(texts.get(stream, [])) for stream in range(streams)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("in_streams", [False, True])
@given(ROWS, CONFIGS, st.integers(1, 5), st.integers(0, 30), st.integers(1, 12))
@settings(max_examples=40)
def test_upcoming_shards_are_those_read_in_order_of_first_use(
    in_streams: bool, rows: list[int], config: OrderConfig, world: int, step: int, ahead: int
) -> None:
    size = min(config.lanes, sum(rows)) if in_streams else 6
    array = np.array(rows)
    reading = StreamOrder(array, 1, size) if in_streams else ReadOrder(array, 1, config)
    for rank in range(world):
        share = ShardShare(size, rank, world)
        read: dict[int, None] = {}
        for number in range(step, step + ahead):
            read |= dict.fromkeys(reading.locate(reading.positions(number, share)).shards.tolist())
        assert reading.upcoming_shards(step, ahead, share).tolist() == list(read)
