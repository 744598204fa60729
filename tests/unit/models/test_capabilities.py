"""What trained models offer: scores, vectors, drawn text and, as encoders, states.

Shapes: B batch, T sequence, E width of a state, V vocabulary.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import distance
from torch import Tensor

from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.tokens import SpecialIds
from rungwise.evaluation.examples import Neighbourhood
from rungwise.instances.batch import MaskedBatch
from rungwise.models.trained.encoders import count_marks
from rungwise.models.trained.language_models import Sampling, generate, measure_loss, windows
from rungwise.models.transformer.block import Boundaries
from rungwise.serving.predictor import list_neighbours
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import WordPieceConfig
from rungwise.training import pretrained
from tests.conftest import made_up_sentences
from tests.report_pages import built
from tests.small_models import (
    KINDS,
    LENGTH,
    VOCAB_SIZE,
    objective_of,
    random_causal_batch,
    shaken,
    small_config,
    small_model,
)
from tests.toy_rungs import Table

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, end=3, ids=(0, 1, 2, 3, 4))
END, MASK = 3, 4
# Shorter than a window, as long as one, and of several.
TEXTS = [[7, 9, 8], [], [5 + n % 40 for n in range(LENGTH - 2)], [5 + n % 31 for n in range(45)]]


def trained(kind: str, **changes: Any) -> Any:
    """A random model as if it had been trained."""
    module = shaken(small_model(kind, **changes)).eval()
    return small_config(kind, **changes).trained(module, objective_of(kind), SPECIAL)


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
        vocab_size = 4

        def log_probabilities(self, texts: Any) -> list[np.ndarray]:
            return [np.full(len(text), math.log(0.25)) for text in texts]

    nats, bits_per_byte = measure_loss(Quarter(), [[1, 2, 3], [], [4]], text_bytes=16)
    assert nats == pytest.approx(math.log(4))
    assert bits_per_byte == pytest.approx(4 * 2 / 16)
    with pytest.raises(DataError, match="found 0 tokens of 16 bytes"):
        measure_loss(Quarter(), [[]], 16)


def test_a_rung_refuses_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: Artifact = built("causal", tmp_path)["pretrain"]
    assert pretrained.load_word_vectors(rung).vectors([1, 2]).shape[0] == 2
    monkeypatch.setattr(pretrained, "load_model", lambda artifact: object())
    with pytest.raises(ConfigError, match=r"small-.* is a gpt trained on causal, .* WordVectors"):
        pretrained.load_word_vectors(rung)


def test_the_neighbours_of_a_word_are_those_of_the_mean_of_its_pieces() -> None:
    tokenizer = train(WordPieceConfig(vocab_size=120, min_frequency=1), made_up_sentences(1, 200))
    table = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8))

    model = Table(table)
    ids = tokenizer.encode("rowser", add_special_tokens=False).ids
    assert len(ids) > 1
    near = Neighbourhood(model, tokenizer).nearest("rowser", 3)
    words = [name for name in tokenizer.get_vocab() if name.isalpha() and len(name) >= 3]
    cosines = {
        word: 1 - distance.cosine(table[tokenizer.token_to_id(word)], table[ids].mean(axis=0))
        for word in words
    }
    best = sorted(cosines, key=cosines.__getitem__, reverse=True)[:3]
    assert [each.word for each in near] == best
    assert [each.cosine for each in near] == pytest.approx([cosines[word] for word in best])
    pieces = " ".join(str(tokenizer.id_to_token(token)) for token in ids)
    nearest = "  ".join(f"{word} {cosines[word]:.3f}" for word in best)
    table_of_words = Neighbourhood(model, tokenizer)
    assert list_neighbours(table_of_words, "rowser", 3) == f"{pieces}: {nearest}"
    assert ":" not in list_neighbours(table_of_words, words[0], 3)
    with pytest.raises(DataError, match="found 'workez'; spelled alike: worker"):
        Neighbourhood(model, tokenizer).nearest("workez", 3)


V, D = VOCAB_SIZE, 16
CASES = [*((kind, {}) for kind in KINDS), ("causal", {"norm": "post"}), ("mlm", {"norm": "pre"})]
IDS = ["-".join((kind, *changes.values())) for kind, changes in CASES]


def encoder_of(kind, dropout=0.0, **changes):
    """A random encoder with its new tokens."""
    return small_config(kind, **changes).encoder(
        objective_of(kind), V, dropout, count_marks(objective_of(kind))
    )


def loaded(kind, loaded_layers=None, **changes):
    """An encoder, and the pretraining model whose weights it has."""
    model = shaken(small_model(kind, **changes))
    encoder = encoder_of(kind, **changes)
    encoder.load(model.state_dict(), loaded_layers)
    return encoder, model


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=IDS)
def test_the_states_do_not_depend_on_padding(kind, changes):
    encoder = shaken(encoder_of(kind, dropout=0.1, **changes)).eval()
    ids_BT = torch.randint(V + count_marks(objective_of(kind)), (3, 9))
    segments_BT = torch.randint(2, (3, 9))
    lengths = [9, 4, 1]
    together = encoder.layers(ids_BT, segments_BT, torch.tensor(lengths))
    assert len(together) == encoder.num_layers + 1
    assert torch.equal(encoder(ids_BT, segments_BT, torch.tensor(lengths)), together[-1])
    for row, length in enumerate(lengths):
        alone = encoder.layers(ids_BT[[row], :length], segments_BT[[row], :length])
        for one, many in zip(alone, together, strict=True):
            assert many.shape == (3, 9, encoder.width)
            torch.testing.assert_close(many[[row], :length], one, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=IDS)
def test_a_state_has_read_what_its_family_reads(kind, changes):
    """Another token at a place moves the states behind it, and in front of it if both sides are
    read; of the two-direction model the left half behind it and the right half in front of it."""
    encoder = shaken(encoder_of(kind, **changes)).eval()
    T, place = 8, 3
    ids_BT = torch.randint(V, (2, T))
    other_BT = ids_BT.clone()
    other_BT[:, place] = (other_BT[:, place] + 7) % V
    lengths_B = torch.tensor([T, 6])
    states, others = (encoder(ids, None, lengths_B) for ids in (ids_BT, other_BT))
    moved_BTE = (states - others).abs() > 0
    behind_T = torch.arange(T) >= place
    for row, length in enumerate(lengths_B.tolist()):
        moved_TE, behind = moved_BTE[row, :length], behind_T[:length]
        if kind == "bidirectional":
            left, right = moved_TE[:, :D].any(-1), moved_TE[:, D:].any(-1)
            assert torch.equal(left, behind)
            assert torch.equal(right, torch.arange(length) <= place)
        elif encoder.causal:
            assert torch.equal(moved_TE.any(-1), behind)
        else:
            assert moved_TE.any(-1).all()
    assert encoder.causal == (kind in ("causal", "left_to_right", "modern_left_to_right", "llama"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bidirectional"])
def test_the_states_are_those_of_pretraining(kind):
    encoder, model = loaded(kind)
    ids_BT = torch.randint(V, (2, 9))
    torch.testing.assert_close(encoder(ids_BT), model.body.encode(ids_BT))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_bidirectional_state_is_that_of_pretraining_on_both_sides(norm):
    """Pretraining predicts token t + 1 from f_t and b_(t+1): b_t here is b_t there."""
    encoder, model = loaded("bidirectional", norm=norm)
    batch = random_causal_batch(3, 9, packed=False)
    lengths_B = batch.weights.sum(dim=1).long()
    predicting_BTE = model.bidirectional.encode(batch.ids, batch.targets, lengths_B)
    # A row of n targets holds n + 1 tokens.
    row_BT = torch.cat((batch.ids, batch.targets[:, -1:]), dim=1)
    for row, length in enumerate(lengths_B.tolist()):
        row_BT[row, length] = batch.targets[row, length - 1]
    states_BTE = encoder(row_BT, None, lengths_B + 1)
    for row, length in enumerate(lengths_B.tolist()):
        left, right = predicting_BTE[row, :length].split(D, dim=-1)
        torch.testing.assert_close(states_BTE[row, :length, :D], left)
        # There b_(t+1) has read x_(t+2) and on; here that is the state of token t + 2.
        torch.testing.assert_close(states_BTE[row, 2 : length + 1, D:], right[:-1])


@pytest.mark.parametrize("kind", ["mlm", "causal", "bidirectional"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_only_the_lowest_layers_are_loaded(kind, count):
    model = shaken(small_model(kind, norm="pre"))
    encoder = encoder_of(kind, norm="pre")
    start = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.load(model.state_dict(), count)
    for name, tensor in encoder.state_dict().items():
        block = int(name.partition(".blocks.")[2].partition(".")[0] or -1)
        is_loaded = count == 2 if "final_norm" in name else block < count
        if "token_embedding" in name:
            assert torch.equal(tensor[:V], model.state_dict()[name])
            assert torch.equal(tensor[V:], start[name][V:])
        else:
            assert torch.equal(tensor, (model.state_dict() if is_loaded else start)[name]), name


def test_the_first_tensor_that_does_not_fit_is_named_and_nothing_is_copied():
    pretrained = small_model("mlm_nsp").state_dict()
    encoder: Any = small_config("mlm_nsp").encoder(objective_of("mlm_nsp"), V + 1, 0.0)
    before = encoder.bert.position_embedding.weight.clone()
    message = r"bert\.token_embedding\.weight: expected shape \[51, 16\], found \[50, 16\]"
    with pytest.raises(DataError, match=message):
        encoder.load(pretrained)
    assert torch.equal(encoder.bert.position_embedding.weight, before)
    del pretrained["bert.transformer.blocks.0.mlp.expand.bias"]
    message = r"blocks\.0\.mlp\.expand\.bias: expected shape \[32\], found none"
    with pytest.raises(DataError, match=message):
        encoder_of("mlm_nsp").load(pretrained)


WORDS, STOP = 6, 0


class _Table:
    """The next token depends on the last one alone; `max_length` is the longest row it takes."""

    max_length = 4

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.logits_VV = torch.from_numpy(rng.normal(size=(WORDS, WORDS)))
        self.logits_VV[:, STOP] = -50  # a document that hardly ever ends

    def next_logits(self, ids_BT: Tensor) -> Tensor:
        assert ids_BT.shape[1] <= self.max_length
        return self.logits_VV[ids_BT]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 3])
def test_tokens_are_drawn_by_their_probabilities(temperature: float, top_k: int) -> None:
    model = _Table()
    draws = 4000
    sampling = Sampling(length=1, temperature=temperature, top_k=top_k)
    new = generate(model, [[2]] * draws, STOP, sampling, streams=range(draws))
    shares_V = np.bincount([token for (token,) in new], minlength=WORDS) / draws
    weights_V = torch.softmax(model.logits_VV[2] / temperature, dim=-1).numpy()
    if top_k:
        weights_V[np.argsort(weights_V)[:-top_k]] = 0
    expected_V = weights_V / weights_V.sum()
    np.testing.assert_allclose(shares_V, expected_V, atol=4 * 0.5 / draws**0.5)
    assert (shares_V[expected_V == 0] == 0).all()


def test_rows_are_the_same_alone_and_outgrow_the_window() -> None:
    model, sampling = _Table(), Sampling(length=20, seed=3)
    prompts = [[1, 2, 3], [4], [5, 1, 2, 3, 4, 5, 1]]
    together = generate(model, prompts, STOP, sampling, streams=[0, 0, 0])
    alone = [generate(model, [prompt], STOP, sampling)[0] for prompt in prompts]
    assert together == alone
    assert [len(new) for new in together] == [20, 20, 20]
    assert generate(model, prompts, STOP, Sampling(length=20, seed=4)) != together


def test_a_number_out_of_range_is_named() -> None:
    with pytest.raises(UserError, match="top_k: expected 0 or more, found -1"):
        Sampling(top_k=-1)
