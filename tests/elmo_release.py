"""A biLM with random weights under the options and names with which ELMo was published."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rungwise.models.families.elmo import Elmo, ElmoConfig

OPTIONS: dict[str, Any] = {
    "lstm": {
        "projection_dim": 6,
        "cell_clip": 0.6,  # low enough for both to cut
        "proj_clip": 0.4,
        "dim": 10,
        "n_layers": 2,
    },
    "char_cnn": {
        "filters": [[1, 4], [2, 5], [3, 7]],
        "n_highway": 2,
        "embedding": {"dim": 4},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}


def shapes_of(options: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The datasets of weights.hdf5 with these options."""
    lstm, cnn = options["lstm"], options["char_cnn"]
    K, P, H = cnn["embedding"]["dim"], lstm["projection_dim"], lstm["dim"]
    F = sum(number for _, number in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, K)}
    for index, (width, number) in enumerate(cnn["filters"]):
        shapes[f"CNN/W_cnn_{index}"] = (1, width, K, number)
        shapes[f"CNN/b_cnn_{index}"] = (number,)
    for index in range(cnn["n_highway"]):
        for kind in ("carry", "transform"):
            shapes[f"CNN_high_{index}/W_{kind}"] = (F, F)
            shapes[f"CNN_high_{index}/b_{kind}"] = (F,)
    shapes |= {"CNN_proj/W_proj": (F, P), "CNN_proj/b_proj": (P,)}
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes[f"{cell}/W_0"] = (P + P, 4 * H)
            shapes[f"{cell}/B"] = (4 * H,)
            shapes[f"{cell}/W_P_0"] = (H, P)
    return shapes


def random_release(options: dict[str, Any] = OPTIONS, seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of a release by name."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(scale=0.6, size=shape).astype(np.float32)
        for name, shape in shapes_of(options).items()
    }


def release_config(options: dict[str, Any]) -> ElmoConfig:
    lstm, cnn = options["lstm"], options["char_cnn"]
    return ElmoConfig(
        num_layers=lstm["n_layers"],
        hidden_size=lstm["projection_dim"],
        cell_size=lstm["dim"],
        cell_clip=lstm["cell_clip"],
        projection_clip=lstm["proj_clip"],
        filters=cnn["filters"],
        character_size=cnn["embedding"]["dim"],
        max_characters=cnn["max_characters_per_token"],
        num_highways=cnn["n_highway"],
    )


def load_release(release: dict[str, np.ndarray], options: dict[str, Any], elmo: Elmo) -> None:
    """Give the body the weights of a release."""

    def turned(name: str) -> Tensor:
        return torch.from_numpy(release[name]).t()

    def reordered(name: str) -> Tensor:
        i, j, f, o = turned(name).chunk(4)
        return torch.cat((i, f, o, j))

    weights: dict[str, Tensor] = {
        "embedding.weight": torch.from_numpy(release["char_embed"]),
        "projection.weight": turned("CNN_proj/W_proj"),
        "projection.bias": turned("CNN_proj/b_proj"),
    }
    for number in range(len(options["char_cnn"]["filters"])):
        kernel = torch.from_numpy(release[f"CNN/W_cnn_{number}"])[0]
        weights[f"convolutions.{number}.weight"] = kernel.permute(2, 1, 0)
        weights[f"convolutions.{number}.bias"] = turned(f"CNN/b_cnn_{number}")
    for number in range(options["char_cnn"]["n_highway"]):
        for name, letter in (("weight", "W"), ("bias", "b")):
            halves = [turned(f"CNN_high_{number}/{letter}_{of}") for of in ("transform", "carry")]
            weights[f"highways.{number}.{name}"] = torch.cat(halves)
    weights = {f"token_embedding.{name}": tensor for name, tensor in weights.items()}
    P, H = options["lstm"]["projection_dim"], options["lstm"]["dim"]
    for direction, name in enumerate(("left_to_right", "right_to_left")):
        for number in range(options["lstm"]["n_layers"]):
            layer, cell = f"{name}.{number}", f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}"
            both = reordered(f"{cell}/LSTMCell/W_0")
            weights[f"{layer}.input_weight"], weights[f"{layer}.state_weight"] = both.split(P, 1)
            bias = reordered(f"{cell}/LSTMCell/B")
            bias[H : 2 * H] += 1.0
            weights[f"{layer}.bias"] = bias
            weights[f"{layer}.projection"] = turned(f"{cell}/LSTMCell/W_P_0")
    spelling = elmo.token_embedding.characters
    elmo.load_state_dict({**weights, "token_embedding.characters": spelling})
