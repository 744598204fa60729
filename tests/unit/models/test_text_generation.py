"""Drawn text: the model's own distribution, cut and sharpened as asked."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rungwise.core.errors import UserError
from rungwise.models.trained.generation import Sampling, generate

V, END = 6, 0


class _Table:
    """The next token depends on the last one alone; `max_length` is the longest row it takes."""

    max_length = 4

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.logits_VV = torch.from_numpy(rng.normal(size=(V, V)))
        self.logits_VV[:, END] = -50  # a document that hardly ever ends

    def next_logits(self, ids_BT: Tensor) -> Tensor:
        assert ids_BT.shape[1] <= self.max_length
        return self.logits_VV[ids_BT]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 3])
def test_tokens_are_drawn_by_their_probabilities(temperature: float, top_k: int) -> None:
    model = _Table()
    draws = 4000
    sampling = Sampling(length=1, temperature=temperature, top_k=top_k)
    new = generate(model, [[2]] * draws, END, sampling, streams=range(draws))
    shares_V = np.bincount([token for (token,) in new], minlength=V) / draws
    weights_V = torch.softmax(model.logits_VV[2] / temperature, dim=-1).numpy()
    if top_k:
        weights_V[np.argsort(weights_V)[:-top_k]] = 0
    expected_V = weights_V / weights_V.sum()
    np.testing.assert_allclose(shares_V, expected_V, atol=4 * 0.5 / draws**0.5)
    assert (shares_V[expected_V == 0] == 0).all()


def test_rows_are_the_same_alone_and_outgrow_the_window() -> None:
    model, sampling = _Table(), Sampling(length=20, seed=3)
    prompts = [[1, 2, 3], [4], [5, 1, 2, 3, 4, 5, 1]]
    together = generate(model, prompts, END, sampling, streams=[0, 0, 0])
    alone = [generate(model, [prompt], END, sampling)[0] for prompt in prompts]
    assert together == alone
    assert [len(new) for new in together] == [20, 20, 20]
    assert generate(model, prompts, END, Sampling(length=20, seed=4)) != together


def test_a_number_out_of_range_is_named() -> None:
    with pytest.raises(UserError, match="top_k: expected 0 or more, found -1"):
        Sampling(top_k=-1)
