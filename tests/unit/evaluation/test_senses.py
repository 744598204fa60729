"""Senses of words: classifiers against scikit-learn, and layers planted to hold them or not."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from rungwise.core.errors import DataError
from rungwise.core.storage import outside
from rungwise.evaluation.suites import classifiers, senses
from rungwise.evaluation.suites.senses import SensesSuite, make_pseudo_words
from rungwise.tokenizer.training import wordpiece
from tests.toy_rungs import Table, encoder_rung

WORDS = ["[UNK]", "the", "bank", "river", "money", "of", "a", "by"]
WORDPIECE = wordpiece({word: number for number, word in enumerate(WORDS)}, lowercase=True)
TABLE = Table(len(WORDS))


class Planted:
    """Layer 0 knows the token alone, layer 1 the mean of its sentence: which holds the sense."""

    width, causal, max_length, num_layers = len(WORDS), False, None, 1

    def layers(self, ids_BT: Tensor, segments_BT: Any = None, lengths_B: Any = None) -> Any:
        own_BTE = torch.nn.functional.one_hot(ids_BT, self.width).float()
        lengths = torch.full((len(ids_BT),), ids_BT.shape[1]) if lengths_B is None else lengths_B
        real_BT1 = (torch.arange(ids_BT.shape[1]) < lengths[:, None])[:, :, None]
        mean_B1E = (own_BTE * real_BT1).sum(dim=1, keepdim=True) / lengths[:, None, None]
        return [own_BTE, mean_B1E.expand_as(own_BTE)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sentences about banks, a third of them of money."""
    draw = random.Random(2)
    for split, count in (("train", 60), ("test", 30)):
        lines, gold = [], []
        for number in range(count):
            sense = "money" if number % 3 == 0 else "river"
            words = [*draw.choices(["the", "a", "of", "by"], k=draw.randint(1, 5)), "bank", sense]
            draw.shuffle(words)
            lines.append(f"{words.index('bank')}\t{' '.join(words)}")
            gold.append("0" if sense == "money" else "1")
        (tmp_path / "bank").mkdir(exist_ok=True)
        (tmp_path / "bank" / f"{split}.data.txt").write_text("\n".join(lines) + "\n")
        (tmp_path / "bank" / f"{split}.gold.txt").write_text("\n".join(gold) + "\n")
    (tmp_path / "bank" / "classes_map.txt").write_text('{"0": "money", "1": "river"}')
    return tmp_path


def accuracy(measured: Any) -> dict[str, float]:
    return {items.part: items.numbers[:, 0].mean() for items in measured.items}


def test_the_layer_that_holds_the_sense_is_found(folder: Path) -> None:
    suite = SensesSuite(path=str(folder))  # pyright: ignore[reportArgumentType]
    measured = suite.measure(encoder_rung(WORDPIECE, Planted(), TABLE), "wsd")
    scores = accuracy(measured)
    rules = ("nearest", "neighbours", "linear")
    assert scores["most frequent"] == 2 / 3
    assert {scores[f"{rule} layer 0"] for rule in rules} == {2 / 3}
    for space in ("layer 1", "context"):
        assert scores[f"nearest {space}"] == scores[f"linear {space}"] == 1
        assert scores[f"neighbours {space}"] > 0.9  # of few sentences, none need be near
    assert scores["linear mix"] == 1
    assert measured.files[senses.MIX]["shares"][1] > 0.7


def test_a_static_vector_gets_what_the_most_frequent_sense_gets(folder: Path) -> None:
    suite = SensesSuite(path=str(folder))  # pyright: ignore[reportArgumentType]
    scores = accuracy(suite.measure(encoder_rung(WORDPIECE, None, TABLE), "wsd"))
    alone = {part: score for part, score in scores.items() if "context" not in part}
    assert set(alone.values()) == {2 / 3}
    assert len(alone) == 5
    assert scores["nearest context"] == 1


def test_bounds_and_damaged_folders(folder: Path) -> None:
    files = outside.list_matching_files([str(folder)], "measure.wsd.path")
    (word,) = senses.read_words(files, 7)
    assert word.train.lines == [1, 9, 18, 26, 35, 43, 52]  # 60·i/7, rounded down
    (folder / "bank" / "test.gold.txt").write_text("0\n")
    with pytest.raises(DataError, match="expected a sense for each of the 30 lines"):
        senses.read_words(files, None)
    (folder / "bank" / "test.gold.txt").unlink()
    with pytest.raises(DataError, match=r"found no test\.gold\.txt"):
        senses.read_words(outside.list_matching_files([str(folder)], "measure.wsd.path"), None)


def test_neighbours_vote_as_in_scikit_learn() -> None:
    draw = np.random.default_rng(11)
    train, test = draw.normal(size=(200, 6)), draw.normal(size=(90, 6))
    classes = draw.integers(4, size=200)
    for neighbours in (1, 4, 5, 200):
        theirs = KNeighborsClassifier(neighbours, metric="cosine", algorithm="brute")
        expected = theirs.fit(train, classes).predict(test)
        found = classifiers.by_neighbours(train, classes, test, neighbours)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("planted", [0, 2])
def test_the_mix_finds_the_layer_with_the_classes(planted: int) -> None:
    draw = np.random.default_rng(5)
    classes = draw.integers(3, size=500)
    layers = draw.normal(size=(4, 500, 8)).astype(np.float32)
    layers[planted, :, :3] += 2 * np.eye(3)[classes]
    train, test = classifiers.standardise(layers[:, :400], layers[:, 400:])
    mix = classifiers.by_mix(train, classes[:400], test)
    assert mix.shares[planted] > 0.75
    assert sum(mix.shares) == pytest.approx(1)
    alone = classifiers.by_line(train[planted], classes[:400], test[planted])
    right, by_line = (float((each == classes[400:]).mean()) for each in (mix.classes, alone))
    assert right > 0.7
    assert right > by_line - 0.1
    assert mix.as_data()["centre"] == pytest.approx(np.dot(range(4), mix.shares))


def test_real_words_are_read(real_data: Path) -> None:
    path = str(real_data / "tasks" / "en" / "CoarseWSD-20")
    words = senses.read_words(outside.list_matching_files([path], "measure.wsd.path"), None)
    assert {word.word: len(word.test.lines) for word in words} == {
        "apple": 1032, "bank": 455, "bass": 1391, "chair": 130, "crane": 157,
        "java": 1929, "mole": 206, "seal": 363, "spring": 457, "trunk": 77,
    }  # fmt: skip
    for word in words:
        for sentence in word.train.sentences + word.test.sentences:
            ((first, end),) = sentence.words
            assert sentence.text[first:end] in {word.word, "perl"}  # one line is at the wrong word


@pytest.mark.parametrize("most", [15, None])
def test_one_word_of_a_pair_stands_for_both_in_equally_many_sentences(most: int | None) -> None:
    draw = random.Random(0)
    vocabulary, shares = [f"w{chr(97 + n)}" for n in range(20)], range(2, 22)
    sentences = [" ".join(draw.choices(vocabulary, shares, k=6)) for _ in range(900)]
    words = make_pseudo_words(sentences, 3, most)
    assert len(words) == 3
    for each in words:
        first, second = each.word.split("-")
        assert each.names == {"0": first, "1": second}
        size = sum(len(split.senses) for split in (each.train, each.test))
        assert size >= (4 * most if most else 2 * 20)
        for split in (each.train, each.test):
            assert split.senses.count("0") == split.senses.count("1")
            for sentence, sense, line in zip(
                split.sentences, split.senses, split.lines, strict=True
            ):
                ((start, end),) = sentence.words
                before, after = sentence.text[:start], sentence.text[end:]
                assert sentence.text[start:end] == first
                assert before + each.names[sense] + after == sentences[line - 1]
                assert not {first, second}.intersection((before + after).split())
