"""A biLM in the two files in which ELMo was published, with random weights: what tests write."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

OPTIONS: dict[str, Any] = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 6,
        "cell_clip": 0.6,  # low enough for both to cut
        "proj_clip": 0.4,
        "dim": 10,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
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


def write_release(
    folder: Path, options: dict[str, Any] = OPTIONS, seed: int = 0
) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """`options.json`, `weights.hdf5` and what is in it."""
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.normal(scale=0.6, size=shape).astype(np.float32)
        for name, shape in shapes_of(options).items()
    }
    (folder / "options.json").write_text(json.dumps(options))
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, tensor in tensors.items():
            file[name] = tensor
    return folder / "options.json", folder / "weights.hdf5", tensors
