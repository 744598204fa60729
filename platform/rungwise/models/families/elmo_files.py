"""Import of the biLM that the authors of ELMo published, `options.json` and `weights.hdf5`.

    encoder = read_release(options, weights, words)
    layers = encoder.layers(ids)      an id is an index into `words`; len(words) begins a sentence,
                                      len(words) + 2 ends it

The published model reads words by their characters and has no vocabulary, so the caller lists the
`words` to be read. The files follow TensorFlow: matrices multiply from the right, gates are in the
order input, cell, forget, output, and the stored bias lacks the 1 that LSTMCell adds to the forget
gate. The output of the two language models was not published.

Needs h5py: `pip install 'rungwise[elmo]'`.

Shapes: D hidden, G gates, K size of a symbol, F filters.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError, UserError
from rungwise.models.families.elmo import NUM_SYMBOLS, Elmo, ElmoConfig
from rungwise.models.losses.objectives import BILM
from rungwise.models.trained.encoders import NUM_MARKS, LayeredEncoder

_GATES = (0, 2, 3, 1)  # our input, forget, output, cell as indices in their order
_FORGET = 1  # in our order


def read_release(options: Path, weights: Path, words: Sequence[str]) -> LayeredEncoder:
    """Read the published biLM over `words` and the three marks of fine-tuning, in eval mode. Raises
    DataError naming the file and a missing or unsupported key or tensor, UserError without h5py."""
    try:
        import h5py
    except ImportError as error:
        raise UserError(
            "weights.hdf5 is read by h5py, which is not installed; pip install 'rungwise[elmo]'"
        ) from error
    config = release_config(options)
    encoder = config.encoder(BILM, len(words), dropout=0.0, new_tokens=NUM_MARKS)
    assert isinstance(encoder.body, Elmo)
    # The marks follow `words`; no word is the end of a document.
    encoder.body.spell([word.encode() for word in words], end=-1)
    try:
        file = h5py.File(weights, "r")
    except OSError as error:
        raise DataError(f"{weights}: expected an HDF5 file, found {error}") from error
    with file:
        _Weights(weights, file).copy_weights(encoder.body)
    return encoder.eval()


def release_config(options: Path) -> ElmoConfig:
    """Read the shape from `options.json`. Raises DataError naming the key that does not fit."""
    try:
        data = json.loads(options.read_text("utf-8"))
        lstm, cnn = data["lstm"], data["char_cnn"]
        # 261 in training; some files count an extra row for no character.
        if (number := cnn["n_characters"]) not in (NUM_SYMBOLS, NUM_SYMBOLS + 1):
            raise DataError(
                f"{options}: n_characters must be {NUM_SYMBOLS} or {NUM_SYMBOLS + 1}, found "
                f"{json.dumps(number)}"
            )
        shape = {
            "num_layers": lstm["n_layers"],
            "hidden_size": lstm["projection_dim"],
            "cell_size": lstm["dim"],
            "cell_clip": lstm["cell_clip"],
            "projection_clip": lstm["proj_clip"],
            "skip_connections": lstm["use_skip_connections"],
            "filters": cnn["filters"],
            "character_size": cnn["embedding"]["dim"],
            "max_characters": cnn["max_characters_per_token"],
            "num_highways": cnn["n_highway"],
            "activation": cnn["activation"],
        }
    except KeyError as error:
        raise DataError(f"{options}: the key {error} is missing") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{options}: expected a JSON file, found {error}") from error
    return validate(ElmoConfig, shape, source=str(options))


class _Weights:
    """The tensors of an open weights.hdf5."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file

    def copy_weights(self, elmo: Elmo) -> None:
        state = elmo.state_dict()  # views of the weights
        tokens, D = elmo.token_embedding, elmo.width // 2
        self._copy(state["token_embedding.embedding.weight"], "char_embed", lambda tensor: tensor)
        for number in range(len(tokens.convolutions)):
            convolution = f"token_embedding.convolutions.{number}"
            self._copy(state[f"{convolution}.weight"], f"CNN/W_cnn_{number}", _turn_convolution)
            self._copy(state[f"{convolution}.bias"], f"CNN/b_cnn_{number}")
        for number in range(len(tokens.highways)):
            for index, kind in enumerate(("transform", "carry")):
                for name, letter in (("weight", "W"), ("bias", "b")):
                    half = state[f"token_embedding.highways.{number}.{name}"].chunk(2)[index]
                    self._copy(half, f"CNN_high_{number}/{letter}_{kind}")
        self._copy(state["token_embedding.projection.weight"], "CNN_proj/W_proj")
        self._copy(state["token_embedding.projection.bias"], "CNN_proj/b_proj")
        for direction, name in enumerate(("left_to_right", "right_to_left")):
            for number in range(len(elmo.left_to_right)):
                layer = f"{name}.{number}"
                cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
                parts = state[f"{layer}.input_weight"], state[f"{layer}.state_weight"]
                both_GS = torch.cat(parts, dim=1)
                self._copy(both_GS, f"{cell}/W_0", lambda tensor: _reorder_gates(tensor.T))
                for part, weight in zip(parts, both_GS.split(D, dim=1), strict=True):
                    part.copy_(weight)
                bias_G = state[f"{layer}.bias"]
                self._copy(bias_G, f"{cell}/B", _reorder_gates)
                bias_G.chunk(4)[_FORGET].add_(1.0)
                self._copy(state[f"{layer}.projection"], f"{cell}/W_P_0")

    def _copy(
        self, target: Tensor, name: str, change: Callable[[Tensor], Tensor] = torch.t
    ) -> None:
        """Copy tensor `name` after applying `change`; transposing leaves a bias as it is."""
        if name not in self._file:
            raise DataError(f"{self._path}: {name} is missing; is it the weights of these options?")
        source = change(torch.from_numpy(np.asarray(self._file[name], dtype=np.float32)))
        if target.shape != source.shape:
            raise DataError(
                f"{self._path}: {name} has, turned our way, the shape {list(source.shape)}, but by "
                f"its options it should be {list(target.shape)}; give the two files of one model"
            )
        target.copy_(source)


def _turn_convolution(weight: Tensor) -> Tensor:
    return weight[0].permute(2, 1, 0)  # (1, width, K, F) -> (F, K, width)


def _reorder_gates(gates: Tensor) -> Tensor:
    parts = gates.chunk(4)
    return torch.cat([parts[number] for number in _GATES])
