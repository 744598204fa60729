"""Encoders of sentences: losses against worked figures and loops; vectors of networks."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError
from rungwise.instances.batch import LabelledPairs, SentenceRuns, TextPairs
from rungwise.models.families.sentence_encoder import (
    INFERENCE,
    QUICK_THOUGHTS,
    SENTENCE_AUTOENCODER,
    SENTENCE_TRANSLATION,
    SKIP_THOUGHTS,
    SentenceEncoderConfig,
    SentenceVectorModel,
    mask_diagonal,
)
from rungwise.models.losses.objectives import Objective
from rungwise.models.trained.capabilities import ContextWordVectors, SentenceVectors
from rungwise.models.transformer.block import parameter_count, pool
from tests.small_models import shaken
from tests.training_runs import VOCAB

SIZES: dict[str, Any] = {"embedding_size": 6, "hidden_size": 6, "num_heads": 2}
NETWORKS: tuple[dict[str, Any], ...] = (
    {"network": "words", "num_layers": 0},
    {"network": "words", "pooling": "mean", "num_layers": 2},
    {"network": "gru", "embedding_size": 5},
    {"network": "two_grus", "num_layers": 2},
    {"network": "lstm", "pooling": "mean"},
    {"network": "two_lstms", "pooling": "max", "embedding_size": 9},
    {"network": "transformer", "pooling": "root"},
)
each_network = pytest.mark.parametrize(
    "network", NETWORKS, ids=lambda keys: f"{keys['network']}-{keys.get('pooling')}"
)


# Documents of 3, 1 and 2 sentences in a run, and a run of 1 and 2 with padding behind.
RUNS = [[3, 1, 4, 2, 5, 1], [2, 6, 3, 0, 0, 0]], [[1, 1, 1, 2, 3, 3], [1, 2, 2, 0, 0, 0]]


def runs(lengths: list[list[int]], document: list[list[int]]) -> SentenceRuns[Tensor]:
    """Random sentences of these lengths, and rubbish behind them."""
    generator = torch.Generator().manual_seed(0)
    lengths_BR = torch.tensor(lengths)
    shape = (*lengths_BR.shape, int(lengths_BR.max()) + 2)
    ids = torch.randint(5, VOCAB, shape, generator=generator)
    return SentenceRuns(ids, lengths_BR, torch.tensor(document))


def built(objective: Objective = QUICK_THOUGHTS, **keys: Any) -> Any:
    torch.manual_seed(0)
    config = SentenceEncoderConfig(**(SIZES | keys))
    return shaken(config.build(VOCAB, objective))


def loss_of(scores_BRR: Tensor, document: list[list[int]]) -> float:
    empty = torch.zeros(len(document), len(document[0]), dtype=torch.int64)
    batch = SentenceRuns(empty[:, :, None], empty, torch.tensor(document))
    return QUICK_THOUGHTS(lambda *_: scores_BRR, batch).loss().item()  # pyright: ignore


def test_the_loss_is_the_worked_one_and_starts_at_the_logarithm_of_the_candidates() -> None:
    """Without S_ii, as in the paper."""
    f = torch.arange(12, dtype=torch.float64).reshape(4, 3) / 10
    g = [[0.1, 0.2, 0.3], [0.3, 0.1, 0], [0, -0.2, 0.4], [0.5, 0.5, -0.1]]
    scores = (f @ torch.tensor(g, dtype=torch.float64).T)[None]
    loss = loss_of(mask_diagonal(scores), [[1] * 4])
    assert loss == pytest.approx(1.1646884461, abs=1e-10)
    zero = mask_diagonal(torch.zeros(1, 400, 400, dtype=torch.float64))
    assert loss_of(zero, [[1] * 400]) == pytest.approx(math.log(399), abs=1e-9)


@each_network
def test_the_loss_is_that_of_each_row_worked_alone(network: dict[str, Any]) -> None:
    model, batch = built(**network).double(), runs(*RUNS)
    total, count, correct = 0.0, 0, 0
    for ids, lengths, document in zip(batch.ids, batch.lengths, batch.document, strict=True):
        read = [ids[i, : lengths[i]][None] for i in range(6) if lengths[i]]
        vectors = [
            torch.cat([encoder(one, torch.tensor([one.shape[1]])) for one in read])
            for encoder in (model.body, model.other)
        ]
        for i in range(len(read)):
            others = [j for j in range(len(read)) if j != i]
            scores = {j: (vectors[0][i] @ vectors[1][j]).item() for j in others}
            near = [j for j in (i - 1, i + 1) if 0 <= j < len(read) and document[j] == document[i]]
            if not near:
                continue
            log_sum = math.log(sum(map(math.exp, scores.values())))
            total += sum(log_sum - scores[j] for j in near) / len(near)
            count += 1
            correct += max(scores, key=scores.__getitem__) in near
    sums = QUICK_THOUGHTS(model, batch)
    assert sums.count.tolist() == [count] == [7]
    assert sums.total.item() == pytest.approx(total, rel=1e-12)
    assert sums.correct.item() == correct
    sums.loss().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("objective", [QUICK_THOUGHTS, SKIP_THOUGHTS], ids=lambda o: o.name)
def test_runs_without_any_neighbour_add_nothing_to_loss_and_gradient(objective: Objective) -> None:
    model = built(objective, network="gru")
    alone = runs([[3], [2]], [[1], [1]])
    sums = objective(model, alone)
    sums.loss().backward()
    assert (sums.total.item(), sums.count.item()) == (0.0, 0.0)
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


def worked_writing(model: Any, batch: SentenceRuns[Tensor], offsets: list[int]) -> tuple[Any, int]:
    """Word by word, with cells that read the word before, or zeros, and the vector."""
    total, words = torch.zeros(()).double(), 0
    table = model.body.token_embedding.weight
    for offset in offsets:
        writer = model.writers[str(offset)]
        cell = nn.GRUCell(table.shape[1] + 6, 6).double()
        for name, value in writer.cells.named_parameters():
            cell.get_parameter(name.removesuffix("_l0")).data.copy_(value.data)
        for ids, lengths, document in zip(batch.ids, batch.lengths, batch.document, strict=True):
            for i in range(len(lengths)):
                j = i + offset
                if not (0 <= j < len(lengths) and document[i] == document[j] > 0):
                    continue
                own = ids[i, : lengths[i]][None]
                vector = model.body(own, torch.tensor([own.shape[1]]))
                state, before = torch.zeros(1, 6).double(), torch.zeros(1, table.shape[1]).double()
                for token in ids[j, : lengths[j]]:
                    state = cell(torch.cat([before, vector], dim=1), state)
                    logits = state @ model.output.weight.T + model.output_bias
                    total = total - logits.log_softmax(1)[0, token]
                    words += 1
                    before = table[token][None]
    return total, words


@each_network
def test_writing_sums_the_words_of_neighbours_or_its_own_one_by_one(
    network: dict[str, Any],
) -> None:
    batch = runs(*RUNS)
    # Next: 1 + 4 + 1 + 3 words; before: 3 + 1 + 5 + 6.
    expected = ((SKIP_THOUGHTS, [-1, 1], 24), (SENTENCE_AUTOENCODER, [0], 27))
    for objective, offsets, words in expected:
        model = built(objective, **network).double()
        total, count = worked_writing(model, batch, offsets)
        sums = objective(model, batch)
        assert sums.count.tolist() == [count] == [words]
        assert sums.total.item() == pytest.approx(total.item(), rel=1e-12)
        for parameter in (model.output.weight, model.output_bias):
            parameter.data.zero_()
        assert objective(model, batch).total.item() == pytest.approx(words * math.log(VOCAB))


@each_network
def test_translation_sums_the_second_text_given_the_first(network: dict[str, Any]) -> None:
    """As a neighbour behind the first would be written."""
    batch = runs([[3, 5], [6, 1]], [[1, 1], [1, 1]])
    model = built(SENTENCE_TRANSLATION, **network).double()
    next_one = built(SKIP_THOUGHTS, **network).double()
    shared = {
        name.replace("writers.paired", "writers.1"): value
        for name, value in model.state_dict().items()
    }
    next_one.load_state_dict(shared, strict=False)
    total, words = worked_writing(next_one, batch, [1])
    sums = SENTENCE_TRANSLATION(model, TextPairs(batch.ids, batch.lengths))
    assert sums.count.tolist() == [words] == [6]
    assert sums.total.item() == pytest.approx(total.item(), rel=1e-12)


@each_network
def test_a_pair_is_judged_by_both_vectors_their_difference_and_product(
    network: dict[str, Any],
) -> None:
    model = built(INFERENCE, **network).double()
    ids = torch.randint(5, VOCAB, (3, 2, 7), generator=torch.Generator().manual_seed(1))
    lengths, label = torch.tensor([[7, 2], [1, 5], [3, 3]]), torch.tensor([2, 0, 1])
    sums = INFERENCE(model, LabelledPairs(ids, lengths, label))
    total = 0.0
    for row in range(3):
        u, v = (
            model.body(ids[row, k, : lengths[row, k]][None], lengths[row, k][None])[0]
            for k in range(2)
        )
        x = torch.cat([u, v, (u - v).abs(), u * v])
        for layer in model.classifier:
            x = layer.weight @ x + layer.bias
        total -= x.log_softmax(0)[label[row]].item()
    assert (sums.count.tolist(), sums.total.item()) == ([3], pytest.approx(total, rel=1e-12))


def test_the_sizes_of_infersent_are_the_released_ones() -> None:
    keys = {"network": "two_lstms", "pooling": "max", "embedding_size": 300, "hidden_size": 4096}
    with torch.device("meta"):
        model: Any = SentenceEncoderConfig(**keys).build(1, INFERENCE)
    assert parameter_count(model.body.layers) == 38_502_400
    assert parameter_count(model.classifier) == 8_653_315


def test_pooling_by_hand_with_rubbish_at_padding() -> None:
    states = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [math.nan, 9.0]], [[9.0, 9.0]] * 3])
    lengths = torch.tensor([2, 0])
    expected: dict[Any, list[float]] = {
        "last": [3, -2],
        "mean": [2, -3],
        "max": [3, -2],
        "sum": [4, -6],
        "root": [4 / math.sqrt(2), -6 / math.sqrt(2)],
    }
    for name, values in expected.items():
        pooled = pool(states, lengths, name)
        torch.testing.assert_close(pooled[0].tolist(), [*map(float, values)])
        assert name == "last" or not pooled[1].any()


@pytest.mark.parametrize("objective", [QUICK_THOUGHTS, SKIP_THOUGHTS], ids=lambda o: o.name)
@each_network
def test_vectors_depend_on_their_text_alone(network: dict[str, Any], objective: Objective) -> None:
    """Of both encoders, each half of length one, or of the only one."""
    model = SentenceVectorModel(built(objective, **network).eval())
    assert isinstance(model, SentenceVectors)
    assert isinstance(model, ContextWordVectors)
    texts = [[7, 8, 9], [10], [], [11, 12, 13, 14, 15]]
    together_ND = model.sentence_vectors(texts)
    assert not together_ND[2].any()
    encoders: list[Any] = [model.module.body] + (
        [model.module.other] if objective == QUICK_THOUGHTS else []
    )
    assert together_ND.shape == (4, 6 * len(encoders))
    for text, vector in zip(texts, together_ND, strict=True):
        np.testing.assert_allclose(model.sentence_vectors([text])[0], vector, atol=1e-6)
        if text:
            parts = [each(torch.tensor([text]), torch.tensor([len(text)])) for each in encoders]
            if len(parts) > 1:
                parts = [functional.normalize(part) for part in parts]
            np.testing.assert_allclose(vector, torch.cat(parts, 1)[0].detach(), atol=1e-6)


def test_states_of_words_are_those_that_the_vector_is_pooled_from() -> None:
    model = SentenceVectorModel(built(INFERENCE, network="two_lstms", pooling="mean").eval())
    text = [7, 8, 9, 10]
    layers = model.word_layers([text, [11]], [[range(1, 2), range(4)], [range(1)]])
    assert layers.shape == (2, 3, 6)
    vectors = model.sentence_vectors([text, [11]])
    np.testing.assert_allclose(layers[1, 1:], vectors, atol=1e-6)
    table = model.module.body.token_embedding.weight.detach().numpy()
    np.testing.assert_allclose(layers[0, 0], table[8], atol=1e-6)


def test_the_two_directions_are_those_of_a_bidirectional_network() -> None:
    for network, cells in (("two_grus", nn.GRU), ("two_lstms", nn.LSTM)):
        encoder = built(network=network).body
        reference = cells(6, 3, bidirectional=True, batch_first=True)
        for number, suffix in enumerate(("", "_reverse")):
            for name, value in encoder.layers[0][number].named_parameters():
                reference.get_parameter(name + suffix).data.copy_(value)
        ids, lengths = torch.randint(5, VOCAB, (4, 7)), torch.tensor([7, 1, 4, 6])
        packed = nn.utils.rnn.pack_padded_sequence(
            encoder.token_embedding(ids), lengths, batch_first=True, enforce_sorted=False
        )
        states, last = reference(packed)
        last = last[0] if isinstance(last, tuple) else last  # (2, N, D / 2)
        torch.testing.assert_close(encoder(ids, lengths), torch.cat(tuple(last), dim=1))
        padded, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        ours = encoder.encode_layers(ids, None, lengths)[-1]
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(ours[row, :length], padded[row, :length])


def test_the_root_grows_with_the_root_of_the_length() -> None:
    encoder = built(network="words", num_layers=0, pooling="root").body
    copies = [encoder(torch.full((1, n), 7), torch.tensor([n])) for n in (1, 9)]
    torch.testing.assert_close(copies[1], 3 * copies[0])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"network": "two_grus", "hidden_size": 7}, "set hidden_size=8"),
        (
            {"network": "words", "num_layers": 0, "hidden_size": 8, "embedding_size": 6},
            "set hidden_size=6",
        ),
        ({"network": "transformer", "hidden_size": 8, "embedding_size": 6}, "set hidden_size=6"),
        ({"network": "gru", "num_layers": 0}, "set num_layers=1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(SentenceEncoderConfig, keys)
