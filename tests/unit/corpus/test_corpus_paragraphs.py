"""Paragraphs that stand in a corpus again: which are found, and documents without them."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rungwise.corpus.building.range_builder import RangeBuilder
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.deduplication import paragraphs
from rungwise.corpus.document import RawDocument, text_digest

Texts = list[list[list[str]]]  # ranges of documents of paragraphs


def tables_of(ranges: Texts) -> list[list[pa.Table]]:
    return [
        list(
            RangeBuilder(DocumentRules(minimum_characters=1, deduplicate=False), "x").tables(
                RawDocument(f"{number}-{row}", "", document)
                for row, document in enumerate(documents)
            )
        )
        for number, documents in enumerate(ranges)
    ]


def cut(
    tables: list[list[pa.Table]], minimum: int, most: int, num_partitions: int = 1
) -> np.ndarray:
    nobody = np.empty(0, np.int64)
    rows = pa.concat_tables(
        paragraphs.paragraph_rows(several, nobody, number, minimum, num_partitions)
        for number, several in enumerate(tables)
    )
    parts = [
        paragraphs.find_repeats(rows.filter(pa.array(rows["partition"].to_numpy() == part)), most)
        for part in range(num_partitions)
    ]
    places = np.concatenate(parts)
    return places[np.lexsort(places.T[::-1])]


def left(tables: list[list[pa.Table]], places: np.ndarray) -> list[dict[str, Any]]:
    (table,) = tables[0]
    return paragraphs.remove_paragraphs(table, places[:, 1:], 10).table.to_pylist()


def test_a_paragraph_stays_where_it_stands_first() -> None:
    licence = "All rights are reserved. Ask the owner."
    ranges = [
        [["A tale.", licence, "It ends. It does."], [licence], ["Brief.", licence, "Other words."]],
        [[licence, "Brief."]],
    ]
    tables = tables_of(ranges)
    places = cut(tables, 10, 1)
    assert places.tolist() == [[0, 1, 0], [0, 2, 1], [1, 0, 0]]
    here = places[places[:, 0] == 0]
    shortened = paragraphs.remove_paragraphs(tables[0][0], here[:, 1:], 10)
    # The blank between two sentences is in none of them.
    assert shortened.characters == 2 * (len(licence) - 1)
    assert shortened.too_short.tolist() == [1]
    rows = shortened.table.to_pylist()
    assert [row["sentences"] for row in rows] == [
        ["A tale.", "All rights are reserved.", "Ask the owner.", "It ends.", "It does."],
        [],
        ["Brief.", "Other words."],
    ]
    assert [row["paragraph_starts"] for row in rows] == [[0, 1, 3], [], [0, 1]]
    assert rows[2]["digest"] == text_digest(["Brief.", "Other words."])
    assert rows[2]["bytes"] == len("Brief. Other words.")
    # Three times are allowed, or the first document is lost to another.
    assert not len(cut(tables, 10, 4))
    assert len(cut(tables, 10, 3)) == 3
    lost = paragraphs.paragraph_rows(tables[0], np.array([0]), 0, 10, 1)
    assert sorted(zip(*lost.select(["row", "paragraph"]).to_pydict().values(), strict=True)) == [
        (1, 0),
        (2, 1),
        (2, 2),
    ]


def test_spans_stay_with_their_sentences() -> None:
    text = "Drop this one.\nSee Bo Li here. Then Al."
    drafts = [
        RawDocument("a", "", text.split("\n"), text=text, spans=[(19, 24), (36, 38)]),
        RawDocument("b", "", ["Drop this one.", "Without spans."]),
        RawDocument("c", "", text.split("\n"), text=text, spans=[(0, 4), (36, 38)]),
    ]
    (table,) = RangeBuilder(DocumentRules(minimum_characters=1, deduplicate=False), "x").tables(
        drafts
    )
    # Also of a table that is a slice of another.
    for begin in (0, 1):
        places = np.array([[row, 0] for row in range(3 - begin)])
        rows = paragraphs.remove_paragraphs(table[begin:], places, 1).table.to_pylist()
        assert [row["spans"] for row in rows] == [[[4, 9], [5, 7]], [], [[], [5, 7]]][begin:]
        assert rows[-1]["sentences"] == ["See Bo Li here.", "Then Al."]


DOCUMENT = st.lists(st.sampled_from(["One. Two.", "Three here.", "Four.", "E."]), min_size=1)


@given(
    st.lists(st.lists(DOCUMENT, min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_as_counted_by_hand(ranges: Texts, minimum: int, most: int) -> None:
    tables = tables_of(ranges)
    every = [text for documents in ranges for document in documents for text in document]
    times, seen = Counter(every), set[str]()
    expected, places = [], []
    for number, documents in enumerate(ranges):
        for row, document in enumerate(documents):
            kept = []
            for index, text in enumerate(document):
                if len(text) >= minimum and times[text] > most and text in seen:
                    places.append([number, row, index])
                else:
                    kept.append(text)
                seen.add(text)
            expected.append(kept)
    found = [cut(tables, minimum, most, parts) for parts in (1, 3)]
    assert [one.tolist() for one in found] == [places, places]
    rows = [
        row
        for number, several in enumerate(tables)
        for row in left([several], found[0][found[0][:, 0] == number])
    ]
    assert [" ".join(row["sentences"]) for row in rows] == [" ".join(kept) for kept in expected]
    assert [len(row["paragraph_starts"]) for row in rows] == [len(kept) for kept in expected]
