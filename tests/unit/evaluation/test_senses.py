"""Senses and tags of words: classifiers against scikit-learn, and layers planted to hold them."""

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from rungwise.core.errors import DataError
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import list_matching_files
from rungwise.evaluation.suites import classifiers, measure, states
from rungwise.evaluation.suites.items import MeasureSummary
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig
from rungwise.evaluation.suites.states import (
    PolysemySuite,
    ProbeSuite,
    PseudoWordsSuite,
    SensesSuite,
    make_pseudo_words,
)
from rungwise.tokenizer.files import wordpiece
from tests.corpora import corpus_of_sentences
from tests.toy_rungs import Table, encoder_rung

WORDS = ["[UNK]", "the", "bank", "river", "money", "of", "a", "by"]
WORDPIECE = wordpiece({word: number for number, word in enumerate(WORDS)}, lowercase=True)
TABLE = Table(np.eye(len(WORDS)))


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
    return {items.part: items.numbers[:, 0].mean() for items in measured}


def test_the_layer_that_holds_the_sense_is_found(folder: Path) -> None:
    suite = SensesSuite(path=str(folder))  # pyright: ignore[reportArgumentType]
    measured = suite.measure(encoder_rung(WORDPIECE, Planted(), TABLE), "wsd")
    scores = accuracy(measured)
    assert scores["most frequent"] == 2 / 3
    assert scores["nearest layer 0"] == scores["linear layer 0"] == 2 / 3
    assert scores["nearest layer 1"] == scores["linear layer 1"] == scores["linear mix"] == 1


def test_a_static_vector_gets_what_the_most_frequent_sense_gets(folder: Path) -> None:
    suite = SensesSuite(path=str(folder))  # pyright: ignore[reportArgumentType]
    scores = accuracy(suite.measure(encoder_rung(WORDPIECE, None, TABLE), "wsd"))
    assert set(scores.values()) == {2 / 3}
    assert len(scores) == 4


def test_bounds_and_damaged_folders(folder: Path) -> None:
    files = list_matching_files([str(folder)], "measure.wsd.path")
    (word,) = states.read_words(files, 7)
    assert word.train.lines == [1, 9, 18, 26, 35, 43, 52]  # 60·i/7, rounded down
    (folder / "bank" / "test.gold.txt").write_text("0\n")
    with pytest.raises(DataError, match="expected a sense for each of the 30 lines"):
        states.read_words(files, None)
    (folder / "bank" / "classes_map.txt").write_text("[]")
    with pytest.raises(DataError, match=r"classes_map\.txt: expected an object of sense by number"):
        states.read_words(files, None)
    (folder / "bank" / "test.gold.txt").unlink()
    with pytest.raises(DataError, match=r"found no test\.gold\.txt"):
        states.read_words(list_matching_files([str(folder)], "measure.wsd.path"), None)


@pytest.mark.parametrize("planted", [0, 2])
def test_the_mix_finds_the_layer_with_the_classes(planted: int) -> None:
    draw = np.random.default_rng(5)
    classes = draw.integers(3, size=500)
    layers = draw.normal(size=(4, 500, 8)).astype(np.float32)
    layers[planted, :, :3] += 2 * np.eye(3)[classes]
    train, test = layers[:, :400], layers[:, 400:]
    mix = classifiers.by_mix(train, classes[:400], test)
    alone = classifiers.by_line(train[planted], classes[:400], test[planted])
    right, by_line = (float((each == classes[400:]).mean()) for each in (mix, alone))
    assert right > 0.7
    assert right > by_line - 0.1


def test_real_words_are_read(real_data: Path) -> None:
    path = str(real_data / "tasks" / "en" / "CoarseWSD-20")
    words = states.read_words(list_matching_files([path], "measure.wsd.path"), None)
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
                assert before + {"0": first, "1": second}[sense] + after == sentences[line - 1]
                assert not {first, second}.intersection((before + after).split())


TEXTBOOK = " ".join(o.text for texts, _ in states.read_textbook().values() for o in texts)
TEXTBOOK_WORDS = ["[UNK]", *sorted({"the", "to", "bank", "play", *TEXTBOOK.lower().split()})]
TEXTBOOK_PIECES = wordpiece(
    {word: number for number, word in enumerate(TEXTBOOK_WORDS)}, lowercase=True
)


class Before:
    """Layer 0 knows the token, layer 1 the one before it as well."""

    width, causal, max_length, num_layers = 2 * len(TEXTBOOK_WORDS), True, None, 1
    widths: ClassVar = [width, width]

    def layers(self, ids_BT: Tensor, segments_BT: Any = None, lengths_B: Any = None) -> Any:
        own_BTV = torch.nn.functional.one_hot(ids_BT, len(TEXTBOOK_WORDS)).float()
        before_BTV = torch.cat([torch.zeros_like(own_BTV[:, :1]), own_BTV[:, :-1]], dim=1)
        none_BTV = torch.zeros_like(own_BTV)
        return [torch.cat([own_BTV, each], dim=-1) for each in (none_BTV, before_BTV)]


def rung(encoder: Any) -> Any:
    return encoder_rung(TEXTBOOK_PIECES, encoder, Table(np.eye(len(TEXTBOOK_WORDS))))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """ "bank" and "play" are nouns behind "the" and verbs behind "to"; two in three nouns."""
    draw, paths = random.Random(3), {}
    for split, count in (("train", 90), ("test", 30)):
        rows = []
        for number in range(count):
            word, before, tag = draw.choice(["bank", "play"]), "the", "NOUN"
            if number % 3 == 0:
                before, tag = "to", "VERB"
            rows.append(f"{before} {'PART' if before == 'to' else 'DET'}\n{word} {tag}\n")
        path = tmp_path / f"{split}.txt"
        path.write_text("\n".join(rows))
        paths[split] = str(path)
    return paths


def suite(files: dict[str, str], **changes: Any) -> ProbeSuite:
    return ProbeSuite.model_validate({**files, "format": {"kind": "conll"}, **changes})


def test_the_layer_that_holds_the_tag_is_found(files: dict[str, str]) -> None:
    measured = suite(files).measure(rung(Before()), "pos")
    scores = accuracy(measured)
    # Sixty words: of thirty "the" and "to" all are right, of "bank" and "play" two in three.
    assert scores["most frequent"] == scores["linear layer 0"] == 50 / 60
    assert scores["linear layer 1"] == scores["linear mix"] == 1
    assert set(measured[0].groups) == {"NOUN", "VERB", "DET", "PART"}
    assert len(set(measured[0].names)) == 60

    again = accuracy(suite(files).measure(rung(Before()), "pos"))
    assert again == scores

    # As many words as are asked for, in whole sentences.
    few = suite(files, test_words=21).measure(rung(None), "pos")
    assert len(few[0].names) == 20
    few = suite(files, train_words=2).measure(rung(None), "pos")
    assert accuracy(few)["most frequent"] <= 1 / 3  # from one sentence, with "to" and a verb
    scores = accuracy(suite(files).measure(rung(None), "pos"))
    assert scores["linear layer 0"] == scores["most frequent"] == 50 / 60


def test_paths_are_digests_and_no_part_of_the_config(files: dict[str, str], tmp_path: Path) -> None:
    moved = {}
    for split, path in files.items():
        moved[split] = str(tmp_path / "elsewhere" / Path(path).name)
        Path(moved[split]).parent.mkdir(exist_ok=True)
        Path(moved[split]).write_bytes(Path(path).read_bytes())
    here, there = (MeasureConfig(suites={"pos": suite(paths)}) for paths in (files, moved))
    assert MEASURE.identity is not None
    assert MEASURE.outside is not None
    assert MEASURE.identity(here) == MEASURE.identity(there)
    assert MEASURE.outside(here) == MEASURE.outside(there)
    names = [suite(paths).measure(rung(None), "pos")[0].names for paths in (files, moved)]
    assert names[0] == names[1]
    Path(moved["test"]).write_text("the DET\n")
    assert MEASURE.outside(here) != MEASURE.outside(there)


def test_the_textbook_is_read() -> None:
    sentences, meant = states.read_textbook()["bank"]
    words = [each.text[first:end] for each in sentences for first, end in each.words]
    assert words == ["banks", "bank", "bank", "bank"]
    assert meant == ["river", "river", "money", "money"]
    of_layer_0, of_layer_1 = PolysemySuite().measure(rung(Before()), "textbook")
    places = ["bank 0", "bank 1", "bank 2", "bank 3", "play 0", "play 1", "play 2", "play 3"]
    assert of_layer_0.names == of_layer_1.names == places
    # "banks" is as near to all others, which are equal: "the" stands before each of them. The
    # words before "play" differ, so that each of its occurrences is as near to the three others.
    credits = [1 / 3, 0, 0.5, 0.5, *[1 / 3] * 4]
    np.testing.assert_allclose(of_layer_0.numbers[:, 0], credits)
    np.testing.assert_allclose(of_layer_1.numbers[:, 0], credits)


def test_equally_near_occurrences_share_the_credit() -> None:
    names = ["river", "river", "money", "money"]
    cosines = np.array(
        [[1, 0.2, 0.9, 0.1], [0.2, 1, 0.2, 0.2], [0.9, 0.2, 1, 0.9], [0.1, 0.2, 0.9, 1]]
    )
    credits = [states.nearest_credit(cosines, names, place) for place in range(4)]
    assert credits == [0, 1 / 3, 0.5, 1]


def test_a_suite_that_the_held_out_text_cannot_fill_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But files that cannot be read are the user's to mend."""
    corpus = corpus_of_sentences(folder / "corpus", ["one sentence of few words"] * 3)
    rung = encoder_rung(WORDPIECE, Planted(), TABLE)
    rung.corpus, rung.held_out, rung.report = corpus, [], Context().report
    monkeypatch.setattr(measure, "Rung", lambda *_: rung)
    inputs = {"pretrain": corpus, "tokens": corpus, "tokenizer": corpus, "corpus": corpus}

    def run(suites: dict[str, Any]) -> MeasureSummary:
        config = MeasureConfig(suites=suites)
        return measure.measure(config, inputs, Folder.at(folder / "out"), Context())

    suites = {"made": PseudoWordsSuite(), "own": SensesSuite(path=(str(folder / "bank"),))}
    summary = run(suites)
    assert {score.suite for score in summary.scores} == {"own"}
    assert "expected two words that stand in 20 held-out" in summary.passed_over["made"]
    (folder / "bank" / "test.gold.txt").unlink()
    with pytest.raises(DataError, match="expected the files of a word"):
        run(suites)
