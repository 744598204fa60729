"""ELMo as it was released in our modules, against its equations in numpy."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.models.families.elmo import ElmoConfig
from rungwise.models.losses.objectives import BILM
from rungwise.models.trained.encoders import NUM_MARKS
from tests.elmo_release import OPTIONS, load_release, random_release, release_config

WORDS = ["The", "naïve", "日本語", "a", "x" * 60, "parser", "."]
SENTENCES = [[0, 1, 5, 2, 6], [3, 4, 6]]
START, END = len(WORDS), len(WORDS) + 2


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def symbols(word: str | int) -> list[int]:
    """A word as 50 symbols: begin 258, its bytes, end 259, filling 260; or a mark of a sentence."""
    inside = [word] if isinstance(word, int) else list(word.encode())[:48]
    return (([258, *inside, 259]) + [260] * 50)[:50]


def vector(word: str | int, of: dict[str, np.ndarray], options: dict[str, Any]) -> np.ndarray:
    """The character CNN on one word: the maximum over all places of each filter."""
    cnn = options["char_cnn"]
    characters = of["char_embed"][symbols(word)]
    found = []
    for index, (width, number) in enumerate(cnn["filters"]):
        kernel = of[f"CNN/W_cnn_{index}"][0]
        places = [
            sum(characters[place + k] @ kernel[k] for k in range(width))
            for place in range(50 - width + 1)
        ]
        most = np.max(places, axis=0) + of[f"CNN/b_cnn_{index}"]
        assert most.shape == (number,)
        found.append(np.maximum(most, 0))
    x = np.concatenate(found)
    for index in range(cnn["n_highway"]):
        part = {name: of[f"CNN_high_{index}/{name}"] for name in ("W_carry", "W_transform")}
        carry = sigmoid(x @ part["W_carry"] + of[f"CNN_high_{index}/b_carry"])
        new = np.maximum(x @ part["W_transform"] + of[f"CNN_high_{index}/b_transform"], 0)
        x = carry * new + (1 - carry) * x
    return x @ of["CNN_proj/W_proj"] + of["CNN_proj/b_proj"]


def lstm(
    inputs: list[np.ndarray], cell: str, of: dict[str, np.ndarray], options: dict[str, Any]
) -> list[np.ndarray]:
    """TensorFlow's LSTMCell with num_proj, cell_clip and proj_clip, from zeros."""
    sizes = options["lstm"]
    c, m = np.zeros(sizes["dim"]), np.zeros(sizes["projection_dim"])
    outputs = []
    for x in inputs:
        gates = np.concatenate([x, m]) @ of[f"{cell}/W_0"] + of[f"{cell}/B"]
        i, j, f, o = np.split(gates, 4)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
        if sizes["cell_clip"]:
            c = np.clip(c, -sizes["cell_clip"], sizes["cell_clip"])
        m = (sigmoid(o) * np.tanh(c)) @ of[f"{cell}/W_P_0"]
        if sizes["proj_clip"]:
            m = np.clip(m, -sizes["proj_clip"], sizes["proj_clip"])
        outputs.append(m)
    return outputs


def layers_of(
    words: list[str | int], of: dict[str, np.ndarray], options: dict[str, Any]
) -> list[np.ndarray]:
    """(T, 2P) of each layer, the vectors of the words twice first."""
    of = {name: tensor.astype(np.float64) for name, tensor in of.items()}
    vectors = [vector(word, of, options) for word in words]
    found = []
    for direction in range(2):
        x = vectors if direction == 0 else vectors[::-1]
        layers = [x]
        for layer in range(options["lstm"]["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            outputs = lstm(x, cell, of, options)
            x = [y + below for y, below in zip(outputs, x, strict=True)] if layer else outputs
            layers.append(x)
        found.append([np.array(each if direction == 0 else each[::-1]) for each in layers])
    return [np.concatenate(both, axis=1) for both in zip(*found, strict=True)]


CHANGES: list[dict[str, Any]] = [
    {},
    {"n_highway": 1},
    {"cell_clip": None, "proj_clip": None, "n_layers": 3},
]


@pytest.mark.parametrize("changes", CHANGES, ids=["clipped", "one-highway", "three-layers"])
@torch.no_grad()
def test_the_layers_of_a_release_are_those_of_its_equations(changes: dict[str, Any]) -> None:
    options = copy.deepcopy(OPTIONS)
    for key, value in changes.items():
        options["lstm" if key in options["lstm"] else "char_cnn"][key] = value
    release = random_release(options)
    encoder = release_config(options).encoder(BILM, len(WORDS), 0.0, NUM_MARKS).eval()
    body: Any = encoder.body
    body.spell([word.encode() for word in WORDS], end=-1)
    load_release(release, options, body)
    rows = [[START, *sentence, END] for sentence in SENTENCES]
    lengths_B = torch.tensor([len(row) for row in rows])
    ids_BT = torch.tensor([row + [0] * (int(lengths_B.max()) - len(row)) for row in rows])
    layers = encoder.layers(ids_BT, None, lengths_B)
    assert len(layers) == options["lstm"]["n_layers"] + 1
    for number, sentence in enumerate(SENTENCES):
        words = [256, *(WORDS[index] for index in sentence), 257]
        expected = layers_of(words, release, options)
        for ours, theirs in zip(layers, expected, strict=True):
            np.testing.assert_allclose(
                ours[number, : len(words)].numpy(), theirs, atol=1e-5, rtol=1e-5
            )
    if options["lstm"]["cell_clip"]:  # both have cut
        assert torch.eq(layers[1].abs(), torch.tensor(options["lstm"]["proj_clip"])).any()


def test_the_published_model_has_93_6_million_parameters() -> None:
    """https://allenai.org/allennlp/software/elmo, "Original": 2x4096 with 512."""
    options = {
        "lstm": {
            **OPTIONS["lstm"],
            "projection_dim": 512,
            "dim": 4096,
            "cell_clip": 3,
            "proj_clip": 3,
        },
        "char_cnn": {
            **OPTIONS["char_cnn"],
            "embedding": {"dim": 16},
            "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        },
    }
    config = release_config(options)
    assert config == ElmoConfig()
    with torch.device("meta"):
        body = config.body(1000, BILM)
    F, P, H = 2048, 512, 4096
    cnn = 261 * 16 + sum(16 * width * n + n for width, n in options["char_cnn"]["filters"])
    highways = 2 * (F * 2 * F + 2 * F) + F * P + P
    lstms = 4 * (2 * P * 4 * H + 4 * H + H * P)
    parameters = sum(p.numel() for p in body.parameters())
    assert parameters == cnn + highways + lstms
    assert math.floor(parameters / 1e5) == 936
