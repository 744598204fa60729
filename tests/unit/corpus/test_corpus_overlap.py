"""Held-out text is new text: passages that stand in training leave it, in documents of any form."""

import random
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.stages.stage import SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.held_out import HeldOutSplit, choose_split, fraction_threshold
from rungwise.corpus.building.range_builder import split_keys
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.cleaning.duplicates import DocumentDecision
from rungwise.corpus.cleaning.overlap import hash_words
from rungwise.corpus.cleaning.text import DOCUMENT
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.document import Document, RawDocument, read_documents, text_digest
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.suites.base import Rung
from tests.summaries import standing


def draw_words(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices("abcdefghij", k=rng.randint(3, 8))) for _ in range(count)]


def draw_sentence(rng: random.Random, words: int) -> str:
    return " ".join(draw_words(rng, words)).capitalize() + "."


def build(
    folder: Path, documents: list[RawDocument], **rules: object
) -> tuple[CorpusSummary, dict[str, list[Document]]]:
    summary = write_corpus([documents], validate(DocumentRules, rules), "x", Folder.at(folder))
    return summary, {
        split: [
            document
            for name in summary.file_names(split)
            for document in read_documents(Folder.at(folder), name)
        ]
        for split in ("train", "validation")
    }


def brute_force(train: list[Document], lines: list[str]) -> set[str]:
    """The lines that the documented rules leave out, by plain loops over sets of tuples."""
    words = [line.lower().rstrip(".").split() for line in lines]
    sentences = {
        tuple(sentence.lower().rstrip(".").split()) for one in train for sentence in one.sentences
    }
    runs = set()
    for one in train:
        text = " ".join(one.sentences).lower().replace(".", "").split()
        runs |= {tuple(text[at : at + 13]) for at in range(len(text) - 12)}
    left = {at for at, line in enumerate(words) if len(line) >= 5 and tuple(line) in sentences}
    flat = [(word, at) for at, line in enumerate(words) for word in line]
    for begin in range(len(flat) - 12):
        run = flat[begin : begin + 13]
        if tuple(word for word, _ in run) in runs:
            left |= set(range(run[0][1], run[-1][1] + 1))
    if sum(len(lines[at]) for at in left) >= 0.7 * sum(map(len, lines)):  # of the only paragraph
        return set(lines)
    return {lines[at] for at in left}


@pytest.mark.parametrize("seed", range(8))
def test_what_leaves_is_what_plain_loops_find(tmp_path: Path, seed: int) -> None:
    """Whole sentences in other case, and runs of 13 words across sentences and documents' ends."""
    rng = random.Random(seed)
    documents = [[draw_sentence(rng, rng.randint(3, 20)) for _ in range(12)] for _ in range(24)]
    for _ in range(40):
        one, other = rng.sample(documents, 2)
        at, to = rng.randrange(12), rng.randrange(12)
        words = one[at][:-1].lower().split()
        match rng.randrange(3):
            case 0:
                other[to] = one[at]
            case 1:  # a part, with words of its own around it
                size = rng.randint(8, 16)
                part = words[:size]
                ends = draw_words(rng, 3), draw_words(rng, 2)
                other[to] = " ".join([*ends[0], *part, *ends[1]]).capitalize() + "."
            case 2 if at < 11:
                other[to : to + 2] = one[at : at + 2]
    raw = [RawDocument(f"d{n}", "x", [" ".join(lines)]) for n, lines in enumerate(documents)]
    rules = {"held_out_fraction": 0.3, "minimum_characters": 1, "deduplicate": False}
    summary, splits = build(tmp_path, raw, **rules)
    held_out = {one.id: list(one.sentences) for one in splits["validation"]}
    whole = {one.id for one in splits["train"]}
    assert held_out
    left = 0
    for number, one in enumerate(raw):
        if one.id in whole or any(each.startswith(f"{one.id}#") for each in held_out):
            continue
        lines = [line[0].upper() + line[1:] for line in documents[number]]
        expected = brute_force(splits["train"], lines)
        kept = [line[0].upper() + line[1:] for line in held_out.get(one.id, [])]
        assert kept == [line for line in lines if line not in expected]
        left += len(" ".join(lines)) - len(" ".join(kept))
    if not any("#" in name for name in held_out):
        assert summary.repeated_bytes == left


def test_a_word_has_one_hash_wherever_it_stands() -> None:
    """In a text of several slices, each word as in its line alone."""
    rng = random.Random(0)
    characters = "ab é ΑΣς. 中文 かな ก໐ \U00020001 1\uff12 -ß\u0301"
    lines = ["".join(rng.choices(characters, k=rng.randint(0, 99))) for _ in range(3000)]
    lines[::9] = [DOCUMENT] * len(lines[::9])
    words, alone = hash_words(lines), [hash_words([line]).hashes for line in lines]
    np.testing.assert_array_equal(words.hashes, np.concatenate(alone))
    np.testing.assert_array_equal(words.line, np.repeat(np.arange(3000), [*map(len, alone)]))
    np.testing.assert_array_equal(words.document, words.line // 9 + 1)


def test_held_out_text_that_was_kept_is_measured_whole(tmp_path: Path) -> None:
    rng = random.Random(1)
    shared = [draw_sentence(rng, 15) for _ in range(6)]
    raw = []
    for number in range(30):
        paragraphs = [" ".join(draw_sentence(rng, 12) for _ in range(4)) for _ in range(3)]
        paragraphs[1] += f" {rng.choice(shared)}"
        raw.append(RawDocument(f"d{number}", "x", paragraphs))
    rules = {"held_out_fraction": 0.3, "minimum_characters": 1, "deduplicate": False}
    _, default = build(tmp_path / "default", raw, **rules)
    summary, whole = build(tmp_path / "kept", raw, **rules, overlap="keep")
    assert summary.repeats_stay
    assert summary.repeated_bytes > 0
    assert default["validation"] != whole["validation"]
    corpus = standing("corpus", Folder.at(tmp_path / "kept"), summary)
    rung = Rung(corpus, corpus, corpus, corpus, SilentReporter())
    assert [each for _, each in rung.held_out] == whole["validation"]


def test_a_paragraph_that_is_nearly_the_same_leaves_and_training_stays_whole(
    tmp_path: Path,
) -> None:
    rng = random.Random(0)
    paragraphs = [[draw_sentence(rng, 12) for _ in range(8)] for _ in range(40)]
    copy = [line.split() for line in paragraphs[0]]
    copy[3][5], copy[6][2] = "changed", "words"
    raw = [RawDocument(f"d{n}", "x", [" ".join(lines)]) for n, lines in enumerate(paragraphs)]
    for number in range(1, 40):  # whichever is held out has it too
        raw[number].paragraphs = [*raw[number].paragraphs, " ".join(map(" ".join, copy))]
    summary, splits = build(tmp_path, raw, held_out_fraction=0.2)
    assert all("changed" not in " ".join(one.sentences) for one in splits["validation"])
    assert sum("changed" in " ".join(one.sentences) for one in splits["train"]) > 20
    assert all(one.paragraph_starts == (0,) for one in splits["validation"])
    share = summary.repeated_bytes / (summary.repeated_bytes + summary.bytes.validation)
    assert f"left out {share:.1%} of the held-out text: it stands in training" in summary.headline


@pytest.mark.parametrize("repeats", ["leave_out", "keep"])
def test_text_of_a_template_stays_and_what_a_recipe_keeps(tmp_path: Path, repeats: str) -> None:
    rng = random.Random(0)
    nouns = ["river", "stone", "market", "garden", "window"]
    lines = [
        f"The old {rng.choice(nouns)} followed the quiet {rng.choice(nouns)} near the river."
        for _ in range(1200)
    ]
    raw = [RawDocument(f"d{n}", "x", [" ".join(lines[n * 40 :][:40])]) for n in range(30)]
    summary, splits = build(tmp_path, raw, held_out_fraction=0.1, overlap=repeats)
    words = sum(len(" ".join(one.sentences).split()) for one in splits["validation"])
    assert abs(words - 0.1 * 9 * 1200) < 0.02 * 9 * 1200
    assert summary.words.validation == words
    assert "% of the held-out text stands in training and stays" in summary.headline
    written = {name for name in Folder.at(tmp_path).names() if name.endswith(".parquet")}
    assert written == {file.file for file in summary.files}


SHAPES = st.lists(
    st.tuples(
        st.integers(60, 4000),  # characters
        st.sampled_from(["sentences", "words", "one word", "chinese", "table"]),
    ),
    min_size=2,
    max_size=25,
)


def shape_text(rng: random.Random, characters: int, shape: str) -> str:
    match shape:
        case "sentences":
            text = " ".join(draw_sentence(rng, 9) for _ in range(characters // 50 + 1))
        case "words":
            text = " ".join(draw_words(rng, characters // 6 + 1))
        case "one word":
            text = "".join(rng.choices("acgt", k=characters))
        case "chinese":
            text = "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(characters // 2))
        case _:
            half = " ".join(draw_sentence(rng, 9) for _ in range(characters // 200 + 1))
            text = half + " " + " | ".join(draw_words(rng, characters // 8 + 1))
    return text


@settings(max_examples=25)
@given(SHAPES, st.sampled_from([0.05, 0.1, 0.3]), st.integers(0, 5))
def test_a_share_is_held_out_of_documents_of_any_shape_or_a_line_says_otherwise(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, str]], share: float, seed: int
) -> None:
    rng = random.Random(str(shapes))
    raw = [RawDocument(f"d{n}", "x", [shape_text(rng, *shape)]) for n, shape in enumerate(shapes)]
    folder = tmp_path_factory.mktemp("corpus")
    summary, splits = build(folder, raw, held_out_fraction=share, seed=seed)
    assert splits["train"]
    assert splits["validation"]
    size = {
        split: sum(len("".join(one.sentences).encode()) for one in documents)
        for split, documents in splits.items()
    }
    amount = size["validation"] / sum(size.values())
    if abs(amount - share) > 0.21 * share and not summary.repeated_bytes:
        assert f"and not {share:.1%}: too little text to cut" in summary.headline
        # Less than a few passages of the share: two documents at least are held out.
        assert share * sum(size.values()) < 5_000
    text = {one.id: "".join("".join(one.paragraphs).split()) for one in raw}
    for name, whole in text.items():
        parts = sorted(
            (one.id, "".join("".join(one.sentences).split()))
            for documents in splits.values()
            for one in documents
            if one.id.partition("#")[0] == name
        )
        if not summary.repeated_bytes:
            assert "".join(part for _, part in parts) == whole


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
            [],
        )
        for part in parts
    ]

    return choose_split(fraction, decisions, lambda: pa.concat_tables(parts))


@cache
def digest(number: int) -> bytes:
    return bytes.fromhex(text_digest([str(number)]))


def held_out_of_equals(count: int, fraction: float, seed: int = 0) -> set[int]:
    keys = split_keys(pa.array([*map(digest, range(count))], pa.binary(16)), seed)
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
def test_the_share_is_nearly_exact(documents: list[tuple[int, int, bool]], fraction: float) -> None:
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
