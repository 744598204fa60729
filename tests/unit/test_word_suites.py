"""Similarity and analogies of words by hand, and as gensim finds them with the same vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gensim.models import KeyedVectors
from numpy.typing import NDArray
from scipy import stats

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import matching
from rungwise.evaluation.suites.analogies import AnalogiesSuite
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.similarity import SimilaritySuite, read_pairs
from rungwise.tasks.formats.base import split_lines
from rungwise.tokenizer import FILE, ByteBpeConfig, train
from tests.toy_rungs import FIRST_WORD, toy_rung


@dataclass(frozen=True)
class Vectors:
    """`WordVectors` of an array whose first rows are those of special tokens."""

    table: NDArray[np.float32]

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def vectors(self, ids: Sequence[int]) -> NDArray[np.float32]:
        return self.table[list(ids)]


def of_words(rows: Any) -> Vectors:
    table = np.array(rows, np.float32)
    return Vectors(np.concatenate([np.ones((FIRST_WORD, table.shape[1]), np.float32), table]))


def by_part(items: list[Items]) -> dict[str, Items]:
    return {each.part: each for each in items}


def test_cosines_by_hand_and_pairs_with_unknown_words_left_out(tmp_path: Path) -> None:
    path = tmp_path / "toy.txt"
    path.write_text("# word 1\tword 2\n" + "a\tb\t1\na\tc\t2\na\tnever\t9\na\ta.b\t3\na\td\t4\n")
    # `d` was too rare to have a vector, `a.b` is three pieces, of which `.` is none.
    vectors = of_words([[3, 0], [0, 2], [4, 4], [0, 0]])
    rung = toy_rung(tmp_path, ["a", "b", "c", "d"], vectors)
    items = by_part(SimilaritySuite(path=(str(path),)).measure(rung, "words").items)
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
    (file,) = matching([str(path)], "path")
    pairs = read_pairs(file, "path")
    assert [(pair.first, pair.second, pair.score) for pair in pairs] == [
        ("old", "new", 1.58),
        ("smart", "bright", 9.2),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"old\tnew\t1\nsmart\tbright\n",
            r"set\.txt:2: expected two words and a score in column 3",
        ),
        (b"old\tnew\t1\nsmart\tbright\tx\n", r"set\.txt:2: .*change measure\.words\.path"),
        (b"old\tnew\t1\nsmart\tbr\xe9\t1\n", r"set\.txt:2: expected UTF-8, .*convert the file$"),
        (b"Word 1\tWord 2\n", r"expected pairs of words, found none; change measure\.words\.path"),
    ],
)
def test_what_is_no_pair_is_refused_in_the_words_of_a_suite(
    content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "set.txt").write_bytes(content)
    rung = toy_rung(tmp_path, ["a"], of_words([[1.0]]))
    with pytest.raises(DataError, match=message) as caught:
        SimilaritySuite(path=(str(tmp_path / "set.txt"),)).measure(rung, "words")
    assert "data.format" not in str(caught.value)


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    rung = toy_rung(tmp_path, ["a"], of_words([[1.0]]))
    for half in ("sim", "rel"):
        (tmp_path / f"ws353.{half}.txt").write_text("a\ta\t1\n" * 3)
    with pytest.raises(DataError, match=r"found ws353 \(up to the first dot\) of .*rel.*sim"):
        SimilaritySuite(path=(str(tmp_path / "*.txt"),)).measure(rung, "words")


def test_analogies_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "toy.txt"
    path.write_text(
        ": capitals\noslo norway rome italy\n: others\noslo rome norway italy\na b c d\n"
    )
    words = ["oslo", "norway", "rome", "italy", "pizza"]
    # norway - oslo + rome is nearer to rome than to italy.
    vectors = of_words([[1, 0, 0], [1, 1, 0], [0.3, 0, 0.95], [0.9, 0.7, 0.3], [1, 0, -1]])
    rung = toy_rung(tmp_path, words, vectors)
    items = by_part(AnalogiesSuite(path=(str(path),)).measure(rung, "words").items)
    assert items[""].names == ["toy.txt:2", "toy.txt:4"]
    assert items[""].groups == ["capitals", "others"]
    assert items[""].numbers.tolist() == [[1, 1], [1, 1]]
    assert items["known"].numbers[:, 0].tolist() == [1, 1, 0]


def test_a_word_of_byte_level_pieces_is_the_one_within_a_text(tmp_path: Path) -> None:
    """With its blank in the first piece; `xyz` has pieces, but is no single one."""
    path = tmp_path / "toy.txt"
    path.write_text(": s\ndog cat dog cat\nxyz dog cat dog\n")
    tokenizer = train(ByteBpeConfig(vocab_size=300, min_frequency=2), ["a dog a cat a dog a cat"])
    vectors = Vectors(np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32))
    rung = toy_rung(tmp_path, ["a"], vectors)
    tokenizer.save(str(tmp_path / FILE))
    items = by_part(AnalogiesSuite(path=(str(path),)).measure(rung, "words").items)
    assert items["known"].numbers[:, 0].tolist() == [1, 0]


def test_files_without_questions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.txt"
    rung = toy_rung(tmp_path, ["a"], of_words([[1.0]]))
    for text, message in (
        ("a b c d\n", r"toy.txt:1: expected four words below a line `: section`, found 4 above"),
        (": s\na b c\n", r"toy.txt:2: expected four words .* found 3 in it"),
        (": s\n", "expected questions, found none"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            AnalogiesSuite(path=(str(path),)).measure(rung, "words")


@pytest.mark.parametrize("name", ["questions-words.txt", "CA8/morphological.txt"])
def test_gensim_answers_the_same_analogies(name: str, real_data: Path, tmp_path: Path) -> None:
    """Vectors in which a section's second word is its first, shifted and blurred."""
    path = real_data / "wordsim" / name
    rng = np.random.default_rng(3)
    known: dict[str, NDArray[np.float32]] = {}
    shift = np.zeros(16)
    for line in split_lines(path.read_text("utf-8")):
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
    rung = toy_rung(tmp_path, kept, of_words([known[word] for word in kept]))
    items = by_part(AnalogiesSuite(path=(str(path),)).measure(rung, "words").items)[""]
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
    rung = toy_rung(tmp_path, kept, of_words(vectors))
    suite = SimilaritySuite(path=tuple(map(str, paths)))
    items = by_part(suite.measure(rung, "words").items)
    for path in paths:
        _, spearman, unknown = theirs.evaluate_word_pairs(str(path), case_insensitive=False)
        ours, known = items[path.stem], items[f"{path.stem} known"]
        correlation: Any = stats.spearmanr(*ours.numbers.T)
        assert correlation.statistic == pytest.approx(spearman[0], abs=1e-6)
        assert 100 * (1 - known.numbers[:, 0].mean()) == pytest.approx(unknown)
