"""Probes: layers planted to hold a tag or not, baselines by hand, and the textbook's sentences."""

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from rungwise.evaluation.suites import probe, senses
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig
from rungwise.evaluation.suites.probe import ProbeSuite
from rungwise.evaluation.suites.senses import PolysemySuite
from rungwise.tokenizer.training import wordpiece
from tests.toy_rungs import Table, encoder_rung

TEXTBOOK = " ".join(o["text"] for each in senses.read_textbook().values() for o in each)
WORDS = ["[UNK]", *sorted({"the", "to", "bank", "play", *TEXTBOOK.lower().split()})]
WORDPIECE = wordpiece({word: number for number, word in enumerate(WORDS)}, lowercase=True)


class Planted:
    """Layer 0 knows the token, layer 1 the one before it as well."""

    width, causal, max_length, num_layers = 2 * len(WORDS), True, None, 1
    widths: ClassVar = [width, width]

    def layers(self, ids_BT: Tensor, segments_BT: Any = None, lengths_B: Any = None) -> Any:
        own_BTV = torch.nn.functional.one_hot(ids_BT, len(WORDS)).float()
        before_BTV = torch.cat([torch.zeros_like(own_BTV[:, :1]), own_BTV[:, :-1]], dim=1)
        none_BTV = torch.zeros_like(own_BTV)
        return [torch.cat([own_BTV, each], dim=-1) for each in (none_BTV, before_BTV)]


def rung(encoder: Any) -> Any:
    return encoder_rung(WORDPIECE, encoder, Table(len(WORDS)))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Sentences in which "bank" and "play" are nouns behind "the" and verbs behind "to"; two in
    three are nouns."""
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
    measured = suite(files).measure(rung(Planted()), "pos")
    scores = {items.part: items.numbers[:, 0].mean() for items in measured.items}
    # Sixty words: of thirty "the" and "to" all are right, of "bank" and "play" two in three.
    assert scores["most frequent"] == scores["linear layer 0"] == 50 / 60
    assert scores["linear layer 1"] == scores["linear mix"] == 1
    assert scores["same word most frequent"] == scores["same word layer 0"] == 20 / 30
    assert scores["same word layer 1"] == 1
    assert set(measured.items[0].groups) == {"NOUN", "VERB", "DET", "PART"}
    assert len(set(measured.items[0].names)) == 60
    mix = measured.files[probe.MIX]
    assert mix["words"] == {"train": 180, "test": 60}
    assert mix["shares"][1] > 0.7

    again = suite(files).measure(rung(Planted()), "pos")
    assert again.files == measured.files

    static = suite(files).measure(rung(None), "pos")
    scores = {items.part: items.numbers[:, 0].mean() for items in static.items}
    assert scores["linear layer 0"] == scores["most frequent"] == 50 / 60
    assert scores["same word layer 0"] == 20 / 30


def test_bounds_count_words_of_whole_sentences(files: dict[str, str]) -> None:
    measured = suite(files, train_words=120, test_words=21).measure(rung(None), "pos")
    assert measured.files[probe.MIX]["words"] == {"train": 120, "test": 20}


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
    names = [suite(paths).measure(rung(None), "pos").items[0].names for paths in (files, moved)]
    assert names[0] == names[1]
    Path(moved["test"]).write_text("the DET\n")
    assert MEASURE.outside(here) != MEASURE.outside(there)


def test_the_textbook_is_read() -> None:
    measured = PolysemySuite().measure(rung(Planted()), "textbook")
    pairs = measured.files[senses.PAIRS]
    shown = pairs["bank"]["occurrences"]
    words = [each["text"][each["first"] : each["end"]] for each in shown]
    assert words == ["banks", "bank", "bank", "bank"]
    assert [each["sense"] for each in shown] == ["river", "river", "money", "money"]
    of_layer_0, of_layer_1 = (np.array(layer) for layer in pairs["bank"]["cosines"])
    assert of_layer_0[1].tolist() == [0, 1, 1, 1]
    assert of_layer_1.tolist() == of_layer_0.tolist()  # "the" stands before all but "banks"
    of_play = np.array(pairs["play"]["cosines"])
    np.testing.assert_array_equal(of_play, [np.ones((4, 4)), 0.5 + np.eye(4) / 2])
    places = ["bank 0", "bank 1", "bank 2", "bank 3", "play 0", "play 1", "play 2", "play 3"]
    assert measured.items[0].names == places


def test_equally_near_occurrences_share_the_credit() -> None:
    names = ["river", "river", "money", "money"]
    cosines = np.array(
        [[1, 0.2, 0.9, 0.1], [0.2, 1, 0.2, 0.2], [0.9, 0.2, 1, 0.9], [0.1, 0.2, 0.9, 1]]
    )
    credits = [senses.nearest_credit(cosines, names, place) for place in range(4)]
    assert credits == [0, 1 / 3, 0.5, 1]
