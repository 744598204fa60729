"""Vectors of words: which pieces a word has, how rows are framed, and that no word is lost."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rungwise.evaluation.suites.states import Sentence, WordReader, find_pieces, word_reader
from rungwise.models.families.bert import BertConfig
from rungwise.models.families.elmo import BidirectionalConfig
from rungwise.models.families.gpt import GptConfig
from rungwise.models.families.recurrent import LstmConfig
from rungwise.models.trained.encoders import EncodedWords
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import ByteBpeConfig
from rungwise.tokenizer.files import wordpiece
from tests import toy_tokenizers
from tests.small_models import shaken
from tests.toy_rungs import encoder_rung

TEXT = ["the bank of the river", "she banks at the bank", "naïve cafés sell 茶 and 茶叶 🍵"] * 20
BYTES = ByteBpeConfig(vocab_size=300)
PIECES = ["[UNK]", "the", "ban", "##k", "##s", "of", "naive", "茶", "叶", "!"]
WORDPIECE = wordpiece({piece: number for number, piece in enumerate(PIECES)}, lowercase=True)


class Recorder:
    """An encoder that keeps the rows it reads; its states are (id, place), then ten times that."""

    width, causal, num_layers = 2, True, 1

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = max_length
        self.rows: list[list[int]] = []

    def layers(self, ids_BT: Tensor, segments_BT: Any = None, lengths_B: Any = None) -> Any:
        lengths = [ids_BT.shape[1]] * len(ids_BT) if lengths_B is None else lengths_B.tolist()
        self.rows += [row[:n] for row, n in zip(ids_BT.tolist(), lengths, strict=True)]
        places_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
        states_BT2 = torch.stack([ids_BT, places_BT], dim=-1)
        return [states_BT2.double(), 10 * states_BT2.double()]


def reader(encoder: Any, closes: int | None, opens: int = 90) -> WordReader:
    return WordReader(WORDPIECE, EncodedWords(encoder, opens, closes))


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
def test_pieces_are_those_that_share_a_character(kind: str) -> None:
    is_unigram, draw = kind == "unigram", random.Random(7)
    tokenizer = toy_tokenizers.unigram(TEXT, 60) if is_unigram else train(BYTES, TEXT)
    letters = "abk snï茶🍵é  e"
    for _ in range(200):
        words = [
            "".join(draw.choices(letters.replace(" ", ""), k=draw.randint(1, 6))) for _ in "1234"
        ]
        sentence = Sentence.of_words(words)
        offsets = tokenizer.encode(sentence.text, add_special_tokens=False).offsets
        for (first, end), pieces in zip(
            sentence.words, find_pieces(offsets, sentence.words), strict=True
        ):
            shared = [n for n, (a, b) in enumerate(offsets) if max(a, first) < min(b, end)]
            assert list(pieces) == shared
            assert shared


def test_a_word_is_the_mean_of_its_pieces_and_zero_without_any() -> None:
    sentences = [Sentence.of_words(["the", "banks", "\x00"]), Sentence.of_words(["of"])]
    encoder = Recorder()
    layers = reader(encoder, closes=91).layers(sentences)
    assert sorted(encoder.rows) == [[90, 1, 2, 3, 4, 91], [90, 5, 91]]
    by_hand = [[1, 1], [3, 3], [0, 0], [5, 1]]
    np.testing.assert_array_equal(layers, [by_hand, np.array(by_hand) * 10])


def test_long_sentences_are_read_in_windows() -> None:
    sentences = [Sentence.of_words(["the", "banks", "of", "the"]), Sentence.of_words(["of"])]
    masked, causal = Recorder(max_length=6), Recorder(max_length=5)
    of_masked, of_causal = (
        reader(encoder, closes).layers(sentences)
        for encoder, closes in ((masked, 91), (causal, None))
    )
    # Four tokens at a time, each window half of that behind the one before.
    assert sorted(masked.rows) == [[90, 1, 2, 3, 4, 91], [90, 3, 4, 5, 1, 91], [90, 5, 91]]
    assert sorted(causal.rows) == [[2, 3, 4, 5, 1], [90, 1, 2, 3, 4], [90, 5]]
    ids = [1, 3, 5, 1, 5]
    assert of_masked[0, :, 0].tolist() == of_causal[0, :, 0].tolist() == ids
    assert of_masked[0, :, 1].tolist() == [1, 3, 3, 4, 1]


SIZES = {"num_layers": 2, "num_heads": 2, "hidden_size": 16, "intermediate_size": 32}


@pytest.mark.parametrize(
    ("config", "objective", "frame"),
    [
        (BertConfig.model_validate(SIZES), "mlm_nsp", (2, 3)),
        (BertConfig.model_validate(SIZES), "left_to_right", (3, None)),
        (GptConfig.model_validate(SIZES), "causal", (3, None)),
        (BidirectionalConfig.model_validate(SIZES), "bidirectional", (3, None)),
        (LstmConfig(num_layers=2, hidden_size=16), "causal", (3, None)),
    ],
)
def test_rows_are_framed_alike(config: Any, objective: str, frame: tuple[int, int | None]) -> None:
    torch.manual_seed(3)
    encoder = shaken(config.encoder(config.objective(objective), len(PIECES), 0.0).eval())
    reads = word_reader(encoder_rung(WORDPIECE, encoder, config=config, objective=objective))
    assert isinstance(reads.source, EncodedWords)
    assert (reads.source.opens, reads.source.closes) == frame
    draw = random.Random(5)
    sentences = [
        Sentence.of_words(draw.choices(["the", "banks", "of", "茶叶"], k=draw.randint(1, 9)))
        for _ in range(40)
    ]
    together = reads.layers(sentences)
    alone = [reads.layers([sentence]) for sentence in sentences]
    assert together.shape == (3, sum(len(s.words) for s in sentences), encoder.width)
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=2e-5)
