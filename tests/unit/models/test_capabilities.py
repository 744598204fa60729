"""Trained models as language models and word vectors, against slower ways to the same numbers.

Shapes: B batch, T sequence, V vocabulary.
"""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import distance

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.examples import Neighbourhood
from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.instances.causal import CausalConfig
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.trained.capabilities import (
    BlankLogits,
    Encoder,
    LanguageModel,
    NextTokenLogits,
    WordVectors,
)
from rungwise.models.trained.language_models import perplexity, windows
from rungwise.models.transformer.attention import Boundaries
from rungwise.serving.trial import try_nearest
from rungwise.tokenizer import SpecialIds, WordPieceConfig, train
from rungwise.tokenizer.token_text import TokenisedText
from rungwise.training import pretrained
from tests.conftest import made_up_sentences
from tests.report_pages import built
from tests.small_models import (
    KINDS,
    LENGTH,
    VOCAB_SIZE,
    objective_of,
    shaken,
    small_config,
    small_model,
)

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, end=3, ids=(0, 1, 2, 3, 4))
END, MASK = 3, 4
# Shorter than a window, as long as one, and of several.
TEXTS = [[7, 9, 8], [], [5 + n % 40 for n in range(LENGTH - 2)], [5 + n % 31 for n in range(45)]]


def trained(kind: str, **changes: Any) -> Any:
    """A random model as if it had been trained."""
    module = shaken(small_model(kind, **changes)).eval()
    return small_config(kind, **changes).trained(module, objective_of(kind), SPECIAL)


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_offers_what_it_can(kind: str) -> None:
    model, objective = trained(kind), objective_of(kind)
    assert isinstance(model, LanguageModel)
    assert isinstance(model, WordVectors)
    assert model.is_exact == objective.is_code_length
    assert isinstance(model, NextTokenLogits) == objective.is_code_length
    assert isinstance(model, BlankLogits) == (not objective.is_code_length)
    encoder = small_config(kind).encoder(objective, VOCAB_SIZE, 0.0)
    assert isinstance(encoder, Encoder)


@pytest.mark.parametrize("max_length", [None, 1, 2, 7, 8])
def test_windows_score_every_token_once_behind_half_a_window(max_length: int | None) -> None:
    lengths = [0, 1, 8, 9, 30]
    scored: list[list[int]] = [[] for _ in lengths]
    for window in windows(lengths, max_length):
        assert window.start <= window.first < window.stop
        assert window.stop - window.start <= (max_length or 30)
        assert window.start == 0 or window.first - window.start >= (max_length or 0) // 2
        scored[window.text] += range(window.first, window.stop)
    assert scored == [list(range(length)) for length in lengths]


@pytest.mark.parametrize("kind", ["causal", "left_to_right"])
@torch.no_grad()
def test_next_tokens_are_scored_after_all_before_them_in_the_window(kind: str) -> None:
    model = trained(kind)
    for text, scores in zip(TEXTS, model.log_probabilities(TEXTS), strict=True):
        assert scores.dtype == np.float64
        stream = [END, *text]
        for place, score in enumerate(scores):
            begin = next(
                start for start in range(0, len(text), LENGTH // 2) if place < start + LENGTH
            )
            ids_BT = torch.tensor([stream[begin : place + 1]])
            log_V = torch.log_softmax(model.module.logits(ids_BT)[0, -1], dim=-1)
            assert score == pytest.approx(log_V[text[place]].item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["causal", "left_to_right"])
def test_the_symbol_within_a_text_begins_another_document(kind: str) -> None:
    model = trained(kind)
    one, other = [7, 9, 8, END], [11, 12, 7]
    apart = np.concatenate(model.log_probabilities([one, other]))
    np.testing.assert_allclose(model.log_probabilities([one + other])[0], apart, rtol=1e-5)


@torch.no_grad()
def test_a_gpt_that_crosses_documents_reads_all_of_its_block() -> None:
    model = trained("causal", crosses_documents=True)
    text = [7, 9, 8, END, 11, 12, 7]
    ids_BT, document_BT = torch.tensor([[END, *text[:-1]]]), torch.tensor([[1, 1, 1, 1, 2, 2, 2]])
    logits_BTV = model.module.to_logits(model.module.gpt.encode(ids_BT))
    scores = torch.log_softmax(logits_BTV[0], dim=-1)[range(7), text].numpy()
    np.testing.assert_allclose(model.log_probabilities([text])[0], scores, rtol=1e-5)
    assert torch.equal(
        model.module.logits(ids_BT, Boundaries(document_BT, document_BT)), logits_BTV
    )


@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
@torch.no_grad()
def test_a_masked_model_scores_each_token_behind_a_mask(positions: str) -> None:
    model = trained("mlm", positions=positions)
    size = LENGTH - 2
    for text, scores in zip(TEXTS, model.log_probabilities(TEXTS), strict=True):
        for place, score in enumerate(scores):
            begin = next(start for start in range(0, len(text), size // 2) if place < start + size)
            row = [2, *text[begin : begin + size], 3]
            at = place - begin + 1
            row[at] = MASK
            logits = model.module(
                MaskedBatch.to_predict(torch.tensor([row]), None, None, torch.tensor([[at]]))
            ).mlm
            log_V = torch.log_softmax(logits[0, 0], dim=-1)
            assert score == pytest.approx(log_V[text[place]].item(), abs=1e-5)


@torch.no_grad()
def test_a_two_direction_model_scores_each_token_from_all_others() -> None:
    model = trained("bidirectional")
    text = TEXTS[0]
    [scores] = model.log_probabilities([text])
    # Another token in one place moves the scores of all others, and of its own only the choice.
    for place, token in enumerate(text):
        others = [{**dict(enumerate(text)), place: other} for other in range(VOCAB_SIZE)]
        moved = model.log_probabilities([list(each.values()) for each in others])
        own = np.array([row[place] for row in moved])
        assert np.exp(own).sum() == pytest.approx(1.0, abs=1e-5)
        assert own[token] == pytest.approx(scores[place])
        apart = np.delete(moved[(token + 1) % VOCAB_SIZE] - scores, place)
        assert (np.abs(apart) > 0).all()


def test_perplexity_by_hand() -> None:
    class Quarter:
        is_exact = True

        def log_probabilities(self, texts: Any) -> list[np.ndarray]:
            return [np.full(len(text), math.log(0.25)) for text in texts]

    measured = perplexity(Quarter(), [[1, 2, 3], [], [4]], text_bytes=16)
    assert measured.perplexity == pytest.approx(4.0)
    assert measured.nats_per_token == pytest.approx(math.log(4))
    assert (measured.predicted, measured.is_exact) == (4, True)
    assert measured.bits_per_byte == pytest.approx(4 * 2 / 16)
    with pytest.raises(DataError, match="found 0 tokens of 16 bytes"):
        perplexity(Quarter(), [[]], 16)


def test_perplexity_is_the_validation_loss_of_rows_of_one_document() -> None:
    model = trained("causal")
    documents = [text for text in TEXTS if 0 < len(text) < LENGTH]
    nats, tokens = 0.0, 0.0
    for document in documents:
        ids = np.array(document, np.uint16)
        starts, first = np.array([0, len(ids)]), np.array([0, 1])
        text = TokenisedText(ids, starts, first, np.zeros(1, np.uint64))
        rng = np.random.default_rng(0)
        shard = CausalConfig(sequence_length=LENGTH).build(text, SPECIAL, rng).shard
        row_BT = torch.from_numpy(shard.ids.astype(np.int64))[None]
        weights_BT = torch.ones(1, row_BT.shape[1] - 1)
        batch = CausalBatch(row_BT[:, :-1], row_BT[:, 1:], weights_BT)
        sums = CAUSAL(model.module, batch)
        nats, tokens = nats + sums.total.item(), tokens + sums.count.item()
    measured = perplexity(model, [[*document, END] for document in documents], text_bytes=100)
    assert measured.predicted == tokens
    assert measured.nats_per_token == pytest.approx(nats / tokens, rel=1e-5)


@pytest.mark.parametrize("kind", ["mlm", "causal", "bidirectional"])
def test_word_vectors_know_the_nearest_neighbour_of_a_token(kind: str) -> None:
    model = trained(kind, hidden_size=32)
    with torch.no_grad():
        table = model.module.body.token_embedding.weight
        table[20] = table[10] * 2  # the same direction
    vectors = model.vectors(range(model.vocab_size))
    assert vectors.shape == (VOCAB_SIZE, 32)
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = directions @ directions[10]
    near[10] = -1
    assert int(near.argmax()) == 20


def test_a_rung_is_asked_by_capability_and_refuses_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: Artifact = built("causal", tmp_path)["pretrain"]
    assert pretrained.load_word_vectors(rung).vectors([1, 2]).shape[0] == 2
    monkeypatch.setattr(pretrained, "load_model", lambda artifact: object())
    with pytest.raises(ConfigError, match=r"small-.* is a gpt trained on causal, .* WordVectors"):
        pretrained.load_word_vectors(rung)


def test_the_neighbours_of_a_word_are_those_of_the_mean_of_its_pieces() -> None:
    tokenizer = train(WordPieceConfig(vocab_size=120, min_frequency=1), made_up_sentences(1, 200))
    table = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8))

    class Vectors:
        vocab_size = len(table)

        def vectors(self, ids: Any) -> np.ndarray:
            return table[list(ids)].astype(np.float32)

    ids = tokenizer.encode("rowser", add_special_tokens=False).ids
    assert len(ids) > 1
    near = Neighbourhood(Vectors(), tokenizer).nearest("rowser", 3)
    words = [name for name in tokenizer.get_vocab() if name.isalpha() and len(name) >= 3]
    cosines = {
        word: 1 - distance.cosine(table[tokenizer.token_to_id(word)], table[ids].mean(axis=0))
        for word in words
    }
    best = sorted(cosines, key=cosines.__getitem__, reverse=True)[:3]
    assert [each.word for each in near] == best
    assert [each.cosine for each in near] == pytest.approx([cosines[word] for word in best])
    pretrained: Any = SimpleNamespace(model=Vectors(), tokenizer=tokenizer)
    pieces = " ".join(str(tokenizer.id_to_token(token)) for token in ids)
    nearest = "  ".join(f"{word} {cosines[word]:.3f}" for word in best)
    trial = try_nearest(pretrained, 3)
    assert trial.answer("rowser") == f"{pieces}: {nearest}"
    assert ":" not in trial.answer(words[0])
    with pytest.raises(DataError, match="no vector of each token"):
        try_nearest(SimpleNamespace(model=object(), tokenizer=tokenizer), 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="found 'workez'; spelled alike: worker"):
        Neighbourhood(Vectors(), tokenizer).nearest("workez", 3)
