"""Suites of words, sentences, perplexity and speed: by hand, and beside gensim."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gensim.models import KeyedVectors
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import list_matching_files
from rungwise.core.tokens import SpecialIds
from rungwise.evaluation.comparison.claims import compare, registered_claims
from rungwise.evaluation.suites import language_models
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.language_models import PerplexitySuite, SpeedSuite
from rungwise.evaluation.suites.vectors import (
    RANDOM,
    AnalogiesSuite,
    SentencesSuite,
    SimilaritySuite,
    read_pairs,
)
from rungwise.models.families.gpt import GptConfig
from rungwise.tasks.formats.base import split_lines
from rungwise.tasks.formats.texts import ColumnsConfig, TableFormat
from rungwise.tokenizer import FILE
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig
from tests.toy_rungs import FIRST_WORD, Table, toy_rung
from tests.unit.models.test_word_states import Recorder


def model_of_words(rows: Any) -> Table:
    """Its first rows are those of special tokens."""
    return Table([*np.ones((FIRST_WORD, len(rows[0]))), *rows])


PAIRS = TableFormat(
    columns=ColumnsConfig(text=0, second=1, score=2), delimiter=",", quoting=True, header=False
)
SIMILARITY, ANALOGIES, PERPLEXITY, SENTENCES = (
    lambda path: SimilaritySuite(path=path),
    lambda path: AnalogiesSuite(path=path),
    lambda path: PerplexitySuite(path=path),
    lambda path: SentencesSuite(path=path, format=PAIRS),
)


def by_part(items: list[Items]) -> dict[str, Items]:
    return {each.part: each for each in items}


def test_cosines_by_hand_and_pairs_with_unknown_words_left_out(tmp_path: Path) -> None:
    path = tmp_path / "toy.txt"
    path.write_text("# word 1\tword 2\n" + "a\tb\t1\na\tc\t2\na\tnever\t9\na\ta.b\t3\na\td\t4\n")
    # `d` was too rare to have a vector, `a.b` is three pieces, of which `.` is none.
    vectors = model_of_words([[3, 0], [0, 2], [4, 4], [0, 0]])
    rung = toy_rung(tmp_path, ["a", "b", "c", "d"], vectors)
    items = by_part(SimilaritySuite(path=(str(path),)).measure(rung, "words"))
    assert items["toy"].names == ["toy.txt:2", "toy.txt:3", "toy.txt:5"]
    a_b = 1.5 / np.hypot(1.5, 1)
    expected = [[1, 0], [2, 1 / np.sqrt(2)], [3, a_b]]
    np.testing.assert_allclose(items["toy"].numbers, expected, atol=1e-12)
    assert items["toy known"].numbers[:, 0].tolist() == [1, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "content",
    [
        # SimLex-999.txt; combined.tab and combined.csv of WordSim-353; without a header
        "word1\tword2\tPOS\tSimLex999\tconc(w1)\nold\tnew\tA\t1.58\t2.72\nsmart\tbright\tA\t9.2\t1\n",
        "Word 1\tWord 2\tHuman (mean)\r\nold\tnew\t1.58\r\nsmart\tbright\t9.20\r\n",
        "Word 1,Word 2,Human (mean),1,2\nold,new,1.58,3,4\nsmart,bright,9.2,5,6\n",
        "# a comment\nold new 1.58\n\nsmart  bright 9.2\n",
    ],
    ids=["simlex", "wordsim tab", "wordsim csv", "blanks"],
)
def test_published_sets_are_read_as_they_are(content: str, tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    path.write_text(content, newline="")
    (file,) = list_matching_files([str(path)], "path")
    pairs = read_pairs(file, "path")
    assert [(*pair.parts, pair.number) for pair in pairs] == [
        ("old", "new", 1.58),
        ("smart", "bright", 9.2),
    ]


def test_analogies_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "toy.txt"
    path.write_text(
        ": capitals\noslo norway rome italy\n: others\noslo rome norway italy\na b c d\n"
    )
    words = ["oslo", "norway", "rome", "italy", "pizza"]
    # norway - oslo + rome is nearer to rome than to italy.
    vectors = model_of_words([[1, 0, 0], [1, 1, 0], [0.3, 0, 0.95], [0.9, 0.7, 0.3], [1, 0, -1]])
    rung = toy_rung(tmp_path, words, vectors)
    items = by_part(AnalogiesSuite(path=(str(path),)).measure(rung, "words"))
    assert items[""].names == ["toy.txt:2", "toy.txt:4"]
    assert items[""].groups == ["capitals", "others"]
    assert items[""].numbers.tolist() == [[1, 1], [1, 1]]
    assert items["known"].numbers[:, 0].tolist() == [1, 1, 0]


def test_a_word_of_byte_level_pieces_is_the_one_within_a_text(tmp_path: Path) -> None:
    """With its blank in the first piece; `xyz` has pieces, but is no single one."""
    path = tmp_path / "toy.txt"
    path.write_text(": s\ndog cat dog cat\nxyz dog cat dog\n")
    tokenizer = train(ByteBpeConfig(vocab_size=300, min_frequency=2), ["a dog a cat a dog a cat"])
    vectors = Table(np.random.default_rng(0).normal(size=(300, 4)))
    rung = toy_rung(tmp_path, ["a"], vectors)
    tokenizer.save(str(tmp_path / FILE))
    items = by_part(AnalogiesSuite(path=(str(path),)).measure(rung, "words"))
    assert items["known"].numbers[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize("name", ["questions-words.txt", "CA8/morphological.txt"])
def test_gensim_answers_the_same_analogies(name: str, real_data: Path, tmp_path: Path) -> None:
    """Vectors in which a section's second word is its first, shifted and blurred."""
    lines = split_lines((real_data / "wordsim" / name).read_text("utf-8"))
    lines = [line for n, line in enumerate(lines) if n % 8 == 0 or line.startswith(":")]
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(lines), "utf-8")
    rng = np.random.default_rng(3)
    known: dict[str, NDArray[np.float32]] = {}
    shift = np.zeros(16)
    for line in lines:
        words = line.split()
        if len(words) != 4:
            shift = rng.normal(size=16)
            continue
        for first, second in (words[:2], words[2:]):
            start = known.setdefault(first, rng.normal(size=16).astype(np.float32))
            known.setdefault(second, (start + shift + 0.4 * rng.normal(size=16)).astype(np.float32))
    kept = [word for word in sorted(known) if rng.random() < 0.9]
    theirs = KeyedVectors(16)
    theirs.add_vectors(kept, np.array([known[word] for word in kept]))
    total, sections = theirs.evaluate_word_analogies(str(path), case_insensitive=False)
    rung = toy_rung(tmp_path, kept, model_of_words([known[word] for word in kept]))
    items = by_part(AnalogiesSuite(path=(str(path),)).measure(rung, "words"))[""]
    assert 0.1 < total < 0.9
    assert items.numbers[:, 0].mean() == pytest.approx(total, abs=1e-12)
    for section in sections[:-1]:
        asked = len(section["correct"]) + len(section["incorrect"])
        rows = items.select_group(section["section"]).numbers
        assert (len(rows), rows[:, 0].sum()) == (asked, len(section["correct"]))


def test_gensim_finds_the_same_correlations(real_data: Path, tmp_path: Path) -> None:
    files = ["wordsim353.tsv", "simlex999.txt", "EN-RG-65.txt", "EN-MC-30.txt"]
    paths = [real_data / "wordsim" / name for name in files]
    rng = np.random.default_rng(4)
    words = {
        word
        for path in paths
        for line in split_lines(path.read_text("utf-8"))
        if not line.startswith("#")
        for word in line.split("\t")[:2]
    }
    kept = [word for word in sorted(words) if word.isalnum() and rng.random() < 0.9]
    vectors = rng.normal(size=(len(kept), 8)).astype(np.float32)
    theirs = KeyedVectors(8)
    theirs.add_vectors(kept, vectors)
    rung = toy_rung(tmp_path, kept, model_of_words(vectors))
    suite = SimilaritySuite(path=tuple(map(str, paths)))
    items = by_part(suite.measure(rung, "words"))
    for path in paths:
        _, spearman, unknown = theirs.evaluate_word_pairs(str(path), case_insensitive=False)
        ours, known = items[path.stem], items[f"{path.stem} known"]
        correlation: Any = stats.spearmanr(*ours.numbers.T)
        assert correlation.statistic == pytest.approx(spearman[0], abs=1e-6)
        assert 100 * (1 - known.numbers[:, 0].mean()) == pytest.approx(unknown)


def test_each_layer_and_the_table_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "sts.csv"
    path.write_text("a b,b,4.5\na,b b a,2\n")
    rung = toy_rung(tmp_path, ["a", "b"], model_of_words([[1, 0], [0, 1]]), Recorder())
    rung.__dict__["summary"] = SimpleNamespace(model=GptConfig(), objective="causal")
    measured = SentencesSuite(path=(str(path),), format=PAIRS).measure(rung, "sts")
    parts = {each.part: each for each in measured}
    assert list(parts) == ["layer 0", "layer 1", "words", RANDOM]
    assert parts["words"].names == ["sts.csv:1", "sts.csv:2"]
    root = np.sqrt(0.5)
    expected = [[4.5, root], [2, 1 / np.sqrt(5)]]
    np.testing.assert_allclose(parts["words"].numbers, expected, rtol=1e-12)
    # A state is the id and the place, behind the mark that opens a row.
    a, b = FIRST_WORD, FIRST_WORD + 1
    sentences = [[(a + b) / 2, 1.5], [b, 1], [a, 1], [(a + b + b) / 3, 2]]
    sizes = [np.hypot(*each) for each in sentences]
    cosines = [np.dot(sentences[i], sentences[i + 1]) / sizes[i] / sizes[i + 1] for i in (0, 2)]
    for layer in ("layer 0", "layer 1"):
        np.testing.assert_allclose(parts[layer].numbers[:, 1], cosines, rtol=1e-6)


WORDS = ["a", "b", "c"]


@dataclasses.dataclass(frozen=True)
class Counts:
    """Finds token n of a text e to the power of n + 1 less likely than certain."""

    is_exact: bool = True

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return [-np.arange(1.0, len(text) + 1) for text in texts]


def written(folder: Path) -> tuple[str, ...]:
    (folder / "test.txt").write_text(" a b \n\n c\né\n", encoding="utf-8")
    return (str(folder / "test.txt"),)


@pytest.mark.parametrize(("contiguous", "nats"), [(False, [6, 3, 3]), (True, [6, 9, 13])])
def test_an_item_is_a_line(contiguous: bool, nats: list[float], tmp_path: Path) -> None:
    suite = PerplexitySuite(path=written(tmp_path), contiguous=contiguous)
    measured = suite.measure(toy_rung(tmp_path, WORDS, Counts()), "test")
    items = {each.metric: each for each in measured}
    assert items["perplexity"].names == ["test.txt:1", "test.txt:3", "test.txt:4"]
    assert items["perplexity"].numbers.tolist() == [[nats[0], 3], [nats[1], 2], [nats[2], 2]]
    assert items["bits_per_byte"].numbers[:, 1].tolist() == [3, 1, 2]


class Reader:
    """Reads a text in the seconds that `takes` says for its length; the first one takes longer."""

    vocab_size, is_exact = 50, True

    def __init__(self, takes: Callable[[int], float]) -> None:
        self.takes, self.now, self.warm = takes, 0.0, 10.0
        self.lengths: list[int] = []

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        (text,) = texts
        assert not {0, 1} & set(text), "an end within a text begins another"
        self.lengths.append(len(text))
        self.now += self.takes(len(text)) + self.warm
        self.warm = 0.0
        return [np.zeros(len(text))]


def items(monkeypatch: pytest.MonkeyPatch, takes: Callable[[int], float]) -> list[Items]:
    reader: Any = Reader(takes)
    monkeypatch.setattr(language_models.time, "perf_counter", lambda: reader.now)
    rung: Any = SimpleNamespace(model=reader, special=SpecialIds(end=0, ids=(0, 1)))
    suite = SpeedSuite(rounds=4)
    assert suite.serves(rung)
    found = suite.measure(rung, "speed")
    assert reader.lengths == list(itertools.chain.from_iterable([[16, 128]] * 5))  # in turns
    return found


def test_tokens_a_second_without_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = items(monkeypatch, lambda length: length / 100)
    assert (short.part, long.part) == ("length 16", "length 128")
    for each in (short, long):
        assert each.numbers[:, 0] / each.numbers[:, 1] == pytest.approx([100] * 4)


def test_the_claim_is_of_what_length_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = items(monkeypatch, lambda _: 0.01)
    by_word = items(monkeypatch, lambda length: length / 1000)
    measured = {
        rung: {each.key: [each] for each in read}
        for rung, read in (("gpt", at_once), ("lstm", by_word))
    }
    (comparison,) = registered_claims().claims["K21"].comparisons
    judged = compare(comparison, measured, {}, ())
    assert judged.value == pytest.approx(np.log(128 / 16))
    assert judged.verdict == "confirmed"


@pytest.mark.parametrize(
    ("suite", "content", "message"),
    [
        (SIMILARITY, b"old\tnew\t1\na\tb\n", r"set\.csv:2: expected two words and a score in col"),
        (SIMILARITY, b"old\tnew\t1\na\tb\tx\n", r"set\.csv:2: .*change measure\.own\.path"),
        (SIMILARITY, b"old\tnew\t1\na\tbr\xe9\t1\n", r"set\.csv:2: expected UTF-8, .*convert the"),
        (SIMILARITY, b"Word 1\tWord 2\n", r"expected pairs of words, found none; change measure"),
        (ANALOGIES, b"a b c d\n", r"set\.csv:1: expected four words below .*, found 4 above"),
        (ANALOGIES, b": s\na b c\n", r"set\.csv:2: expected four words .* found 3 in it"),
        (ANALOGIES, b": s\n", "expected questions, found none"),
        (PERPLEXITY, b"\n \n", r"measure\.own\.path: expected lines of text"),
        (SENTENCES, b"\n", "expected pairs of sentences with scores, found 0 rows"),
        (SENTENCES, b"a,b,1\na,b,x\n", r"set\.csv:2: .* measure\.own\.format\.columns\.score"),
    ],
)
def test_a_file_that_cannot_be_measured_is_refused(
    suite: Callable[..., Any], content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "set.csv").write_bytes(content)
    rung = toy_rung(tmp_path, ["a"], model_of_words([[1.0]]))
    with pytest.raises(DataError, match=message) as caught:
        suite((str(tmp_path / "set.csv"),)).measure(rung, "own")
    assert "data.format" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerplexitySuite(contiguous=True), "set path"),
        (lambda: PerplexitySuite(path=("x",), documents=3), "leave out path or documents"),
        (lambda: SpeedSuite(lengths=(16, 16)), "expected different numbers from 1"),
        (
            lambda: SentencesSuite(
                path=("x",), format=TableFormat(columns=ColumnsConfig(label="label"))
            ),
            "found a format with labels",
        ),
    ],
)
def test_keys_that_contradict_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make()
