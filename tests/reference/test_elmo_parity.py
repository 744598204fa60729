"""ELMo's modules against its equations in numpy."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.models.families.elmo import ElmoConfig
from rungwise.models.losses.objectives import BILM
from rungwise.models.trained.encoders import NUM_MARKS
from tests.small_models import shaken

WORDS = ["The", "naïve", "日本語", "a", "x" * 60, "parser", "."]
SENTENCES = [[0, 1, 5, 2, 6], [3, 4, 6]]
START, END = len(WORDS), len(WORDS) + 2
SIZES: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 6,
    "cell_size": 10,
    "cell_clip": 0.6,  # low enough for both to cut
    "projection_clip": 0.4,
    "filters": [[1, 4], [2, 5], [3, 7]],
    "character_size": 4,
}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def symbols(word: str | int) -> list[int]:
    """A word as 50 symbols: begin 258, its bytes, end 259, filling 260; or a mark of a sentence."""
    inside = [word] if isinstance(word, int) else list(word.encode())[:48]
    return (([258, *inside, 259]) + [260] * 50)[:50]


def vector(word: str | int, of: dict[str, np.ndarray], config: ElmoConfig) -> np.ndarray:
    """The character CNN on one word: the maximum over all places of each filter."""
    of = {name.removeprefix("token_embedding."): tensor for name, tensor in of.items()}
    characters = of["embedding.weight"][symbols(word)]
    found = []
    for index, (width, number) in enumerate(config.filters):
        kernel = of[f"convolutions.{index}.weight"]
        places = [
            sum(kernel[:, :, k] @ characters[place + k] for k in range(width))
            for place in range(50 - width + 1)
        ]
        most = np.max(places, axis=0) + of[f"convolutions.{index}.bias"]
        assert most.shape == (number,)
        found.append(np.maximum(most, 0))
    x = np.concatenate(found)
    for index in range(config.num_highways):
        weight, bias = of[f"highways.{index}.weight"], of[f"highways.{index}.bias"]
        new, gate = np.split(weight @ x + bias, 2)
        carry = sigmoid(gate)
        x = carry * np.maximum(new, 0) + (1 - carry) * x
    return of["projection.weight"] @ x + of["projection.bias"]


def lstm(
    inputs: list[np.ndarray], layer: str, of: dict[str, np.ndarray], config: ElmoConfig
) -> list[np.ndarray]:
    """An LSTM with projected output, cell and output clipped, from zeros."""
    c, m = np.zeros(config.cell_size), np.zeros(config.hidden_size)
    outputs = []
    for x in inputs:
        gates = of[f"{layer}.input_weight"] @ x + of[f"{layer}.state_weight"] @ m
        i, f, o, j = np.split(gates + of[f"{layer}.bias"], 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(j)
        c = np.clip(c, -config.cell_clip, config.cell_clip)
        m = of[f"{layer}.projection"] @ (sigmoid(o) * np.tanh(c))
        m = np.clip(m, -config.projection_clip, config.projection_clip)
        outputs.append(m)
    return outputs


def layers_of(
    words: list[str | int], of: dict[str, np.ndarray], config: ElmoConfig
) -> list[np.ndarray]:
    """(T, 2P) of each layer, the vectors of the words twice first."""
    vectors = [vector(word, of, config) for word in words]
    found = []
    for direction in ("left_to_right", "right_to_left"):
        step = 1 if direction == "left_to_right" else -1
        x = vectors[::step]
        layers = [x]
        for layer in range(config.num_layers):
            outputs = lstm(x, f"{direction}.{layer}", of, config)
            x = [y + below for y, below in zip(outputs, x, strict=True)] if layer else outputs
            layers.append(x)
        found.append([np.array(each[::step]) for each in layers])
    return [np.concatenate(both, axis=1) for both in zip(*found, strict=True)]


CHANGES: list[dict[str, Any]] = [
    {},
    {"num_highways": 1},
    {"cell_clip": 1e6, "projection_clip": 1e6, "num_layers": 3},
]


@pytest.mark.parametrize("changes", CHANGES, ids=["clipped", "one-highway", "three-layers"])
@torch.no_grad()
def test_the_layers_of_a_release_are_those_of_its_equations(changes: dict[str, Any]) -> None:
    config = ElmoConfig(**SIZES | changes)
    encoder = shaken(config.encoder(BILM, len(WORDS), 0.0, NUM_MARKS), 0.6).eval()
    encoder.body.spell([word.encode() for word in WORDS], end=-1)
    weights = {name: tensor.double().numpy() for name, tensor in encoder.body.state_dict().items()}
    rows = [[START, *sentence, END] for sentence in SENTENCES]
    lengths_B = torch.tensor([len(row) for row in rows])
    ids_BT = torch.tensor([row + [0] * (int(lengths_B.max()) - len(row)) for row in rows])
    layers = encoder.layers(ids_BT, None, lengths_B)
    assert len(layers) == config.num_layers + 1
    for number, sentence in enumerate(SENTENCES):
        words = [256, *(WORDS[index] for index in sentence), 257]
        expected = layers_of(words, weights, config)
        for ours, theirs in zip(layers, expected, strict=True):
            np.testing.assert_allclose(
                ours[number, : len(words)].numpy(), theirs, atol=1e-5, rtol=1e-5
            )
    if config.projection_clip < 1:  # both have cut
        assert torch.eq(layers[1].abs(), torch.tensor(config.projection_clip)).any()


def test_the_published_model_has_93_6_million_parameters() -> None:
    """https://allenai.org/allennlp/software/elmo, "Original": 2x4096 with 512."""
    config = ElmoConfig()
    assert (config.cell_clip, config.projection_clip, config.max_characters) == (3, 3, 50)
    with torch.device("meta"):
        body = config.body(1000, BILM)
    F, P, H = 2048, 512, 4096
    cnn = 261 * 16 + sum(16 * width * n + n for width, n in config.filters)
    highways = 2 * (F * 2 * F + 2 * F) + F * P + P
    lstms = 4 * (2 * P * 4 * H + 4 * H + H * P)
    parameters = sum(p.numel() for p in body.parameters())
    assert parameters == cnn + highways + lstms
    assert math.floor(parameters / 1e5) == 936
