"""Held-out text: a share of the words, whatever the lengths of the documents."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.storage.folder import Folder
from rungwise.corpus import read_documents
from rungwise.corpus.building.held_out import (
    Bucket,
    HeldOutSplit,
    add_buckets,
    choose_split,
    count_buckets,
    fraction_threshold,
)
from rungwise.corpus.building.in_memory import write_corpus
from rungwise.corpus.building.range_builder import split_keys
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.deduplication.documents import DocumentDecision
from rungwise.corpus.document import RawDocument, text_digest
from rungwise.corpus.summary import CorpusSummary
from tests.conftest import made_up_sentences

NOTHING = np.empty(0, np.int64)


def choose(
    fraction: float, keys: list[int], sizes: list[int], can_be_cut: list[bool]
) -> HeldOutSplit:
    """The split of a corpus whose documents are spread over three ranges."""
    split = np.array(keys, np.uint64)
    table = pa.table({"split": split, "bytes": sizes, "can_be_cut": can_be_cut})
    parts = [table.take(np.arange(at, len(keys), 3)) for at in range(3)]
    decisions = [
        DocumentDecision(
            NOTHING,
            len(part),
            sum(part["bytes"].to_pylist()),
            sum(
                row["bytes"]
                for row in part.to_pylist()
                if row["split"] <= fraction_threshold(fraction)
            ),
            sorted(part["split"].to_pylist())[:2],
            None,
        )
        for part in parts
    ]

    def count(longest: int, begin: int, width: int) -> list[Bucket]:
        return add_buckets(count_buckets(part, NOTHING, longest, begin, width) for part in parts)

    return choose_split(fraction, decisions, count)


def held_out_of_equals(count: int, fraction: float, seed: int = 0) -> set[int]:
    numbers = [
        pa.array([bytes.fromhex(text_digest([str(n)]))], pa.binary(16)) for n in range(count)
    ]
    keys = split_keys(pa.concat_arrays(numbers), seed)
    split = choose(fraction, keys.tolist(), [1] * count, [False] * count)
    largest = max(split.threshold, split.edge if split.hold_whole_edge else 0)
    return set(np.nonzero(keys <= np.uint64(largest))[0].tolist())


def test_many_documents_are_held_out_by_their_hash_alone() -> None:
    for fraction in (0.05, 0.3):
        # Five standard deviations of a binomial.
        margin = 5 * (20_000 * fraction * (1 - fraction)) ** 0.5
        assert abs(len(held_out_of_equals(20_000, fraction)) - 20_000 * fraction) < margin
    smaller = held_out_of_equals(20_000, 0.05)
    assert smaller <= held_out_of_equals(20_000, 0.3)
    assert smaller != held_out_of_equals(20_000, 0.05, seed=1)
    # More documents move none of those that were there.
    assert {one for one in smaller if one < 2000} == held_out_of_equals(2000, 0.05)
    # A small corpus holds out the smallest hashes.
    for count, expected in ((1, 1), (2, 1), (3, 1), (4, 2), (15, 2)):
        assert {len(held_out_of_equals(count, 1e-9, seed)) for seed in range(20)} == {expected}


@given(
    st.lists(
        st.tuples(st.integers(1, 2**64 - 1), st.integers(1, 1000), st.booleans()),
        min_size=4,
        max_size=40,
        unique_by=lambda one: one[0],
    ),
    st.sampled_from([0.05, 0.1, 0.3]),
)
def test_the_share_is_exact_to_a_fifth_whatever_the_keys_and_words(
    documents: list[tuple[int, int, bool]], fraction: float
) -> None:
    """Unless two documents at least are more than that."""
    split = choose(fraction, *map(list, zip(*documents, strict=True)))
    amount = cut = 0.0
    for key, words, can_be_cut in documents:
        if split.longest is not None and can_be_cut and words > split.longest:
            amount += fraction * words
            cut += 1
        elif key <= split.threshold:
            amount += words
        elif key <= split.edge:
            amount += split.edge_share * words
    room = fraction * sum(words for _, words, _ in documents)
    second = sorted(key for key, _, _ in documents)[1]
    assert abs(amount - room) <= 0.2 * room + 1e-6 or (cut < 2 and split.threshold == second)
    assert sum(key <= max(split.threshold, split.edge) for key, _, _ in documents) + cut >= 2
    if split.longest is None:
        assert split.threshold == fraction_threshold(fraction)


def write(documents: list[RawDocument], folder: Path, fraction: float) -> CorpusSummary:
    rules = validate(DocumentRules, {"held_out_fraction": fraction})
    half = len(documents) // 2
    return write_corpus([documents[:half], documents[half:]], rules, "x", Folder.at(folder))


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.3])
@pytest.mark.parametrize(
    "sentences",
    [[900, 2000, 1200, 2500], [800] * 8, [3000], [5000, *[12] * 60], [40] * 30],
    ids=["four books", "eight equal books", "one book", "a book and notes", "short stories"],
)
def test_the_share_of_words_holds(tmp_path: Path, sentences: list[int], fraction: float) -> None:
    """Every sentence is in one split, in its place, and long documents give a passage each."""
    raw = []
    for number, count in enumerate(sentences):
        # No sentence stands in training too.
        lines = [f"{line[:-1]} {at}." for at, line in enumerate(made_up_sentences(number, count))]
        paragraphs = [" ".join(lines[at : at + 6]) for at in range(0, count, 6)]
        raw.append(RawDocument(f"d{number}", "x", paragraphs))
    summary = write(raw, tmp_path, fraction)
    share = summary.words.validation / summary.words.total
    assert abs(share - fraction) <= 0.2 * fraction
    folder = Folder.at(tmp_path)
    parts = [
        (one, split)
        for split in ("train", "validation")
        for name in summary.file_names(split)
        for one in read_documents(folder, name)
    ]
    for document in raw:
        own = [each for each in parts if each[0].id.partition("#")[0] == document.id]
        own.sort(key=lambda each: each[0].id)
        text = " ".join(sentence for one, _ in own for sentence in one.sentences)
        assert text == " ".join(document.paragraphs)
        if len(own) > 1:
            assert [one.id for one, _ in own] == [f"{document.id}#{n + 1}" for n in range(len(own))]
            assert [split for _, split in own].count("validation") == 1
            for one, _ in own:
                assert one.paragraph_starts[0] == 0
                assert len(" ".join(one.sentences)) >= 50
    assert any(one.id.endswith("#1") for one, _ in parts) or len(sentences) > 20
    assert f"{summary.words.validation:,} words held out" in summary.headline


def test_phrases_go_with_their_sentences(tmp_path: Path) -> None:
    rng = random.Random(0)
    text, spans = "", []
    for _ in range(400):
        begin = len(text) + 4
        word = "".join(rng.choices("abcdefgh", k=9))
        text += f"The {word} was here. "
        spans.append((begin, begin + 9))
    summary = write([RawDocument("d", "x", [text], text=text, spans=spans)], tmp_path, 0.1)
    assert (summary.spans.total, summary.spans_dropped) == (400, 0)
    assert summary.spans.validation == summary.sentences.validation
    for name in summary.file_names("train") + summary.file_names("validation"):
        for one in read_documents(Folder.at(tmp_path), name):
            assert set(one.spans) == {(4, 13)}
