"""The order of streams: contiguous text, every block once an epoch, the same streams on a rank."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rungwise.core.randomness import bits
from rungwise.instances.order import Share
from rungwise.instances.streams import StreamOrder, held_out_streams

ROWS = st.lists(st.integers(0, 40), min_size=1, max_size=10)


def line_of(rows: list[int], seed: int, epoch: int) -> list[int]:
    """The instances of an epoch end to end, by lists: the definition, spelt out."""
    shards = sorted(range(len(rows)), key=lambda shard: int(bits(seed, epoch, 0x5A4D, shard)))
    begins = np.concatenate([[0], np.cumsum(rows)])
    return [int(begins[shard]) + row for shard in shards for row in range(rows[shard])]


@given(ROWS, st.integers(1, 9), st.integers(0, 3), st.integers(1, 5))
@settings(max_examples=200)
def test_streams_are_contiguous_text_and_every_block_is_read_once_an_epoch(
    rows: list[int], streams: int, seed: int, world: int
) -> None:
    assume(sum(rows) >= streams)
    order = StreamOrder(np.array(rows), seed, streams)
    opens = set((np.cumsum(rows) - rows).tolist())
    assert order.steps_per_epoch == sum(rows) // streams
    for epoch in range(2):
        line = line_of(rows, seed, epoch)
        before: list[int] = []
        read: list[int] = []
        for block in range(order.steps_per_epoch):
            step = epoch * order.steps_per_epoch + block
            parts = [
                order.locate(order.positions(step, Share(streams, rank, world)))
                for rank in range(world)
            ]
            for rank, part in enumerate(parts):
                assert len(part.instances) == len(Share(streams, rank, world).rows)
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


@given(ROWS, st.integers(1, 9), st.integers(1, 5), st.integers(0, 30), st.integers(1, 12))
@settings(max_examples=100)
def test_upcoming_shards_are_those_read_in_order_of_first_use(
    rows: list[int], streams: int, world: int, step: int, ahead: int
) -> None:
    assume(sum(rows) >= streams)
    order = StreamOrder(np.array(rows), 1, streams)
    for rank in range(world):
        read: dict[int, None] = {}
        for number in range(step, step + ahead):
            positions = order.positions(number, Share(streams, rank, world))
            read |= dict.fromkeys(order.locate(positions).shards.tolist())
        assert order.upcoming_shards(step, ahead, Share(streams, rank, world)).tolist() == list(
            read
        )


@given(ROWS, st.integers(1, 12), st.integers(0, 100), st.integers(1, 5))
@settings(max_examples=200)
def test_held_out_streams_begin_evenly_and_are_the_same_for_any_number_of_workers(
    rows: list[int], streams: int, most: int, world: int
) -> None:
    count = min(most, sum(rows))
    array = np.array(rows)
    opens = set((np.cumsum(rows) - rows).tolist())
    texts: dict[int, list[int]] = {}
    for rank in range(world):
        mine = Share(streams, rank, world).rows
        for step, (stream, instances, continues) in enumerate(
            held_out_streams(array, count, Share(streams, rank, world))
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
