"""AWD-LSTM and the pooling of its states against fastai, which Howard & Ruder wrote and use."""

from typing import Any

import pytest
import torch

from rungwise.models.families.recurrent import AwdLstmConfig
from rungwise.models.losses.objectives import CAUSAL
from rungwise.tasks.kinds.heads import SequenceHead

awdlstm = pytest.importorskip("fastai.text.models.awdlstm", reason="fastai is not installed")
core = pytest.importorskip("fastai.text.models.core")
LENGTHS = [11, 4, 7]


@torch.no_grad()
def test_states_and_pooled_vectors_are_those_of_fastai() -> None:
    """fastai pads at the end and pools over the chunks of a text; here one chunk is the text."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 9, "embedding_size": 6, "initializer_range": 0.5}
    ours: Any = AwdLstmConfig(**sizes).build(31, CAUSAL).eval()
    theirs = awdlstm.AWD_LSTM(31, 6, 9, 3, pad_token=0).eval()
    theirs.encoder.weight.copy_(ours.awd_lstm.token_embedding.weight)
    for one, other in zip(theirs.rnns, ours.awd_lstm.layers, strict=True):
        for name, value in other.named_parameters():
            target = "weight_hh_l0_raw" if name == "weight_hh_l0" else f"module.{name}"
            one.get_parameter(target).copy_(value)
            if name == "weight_hh_l0":
                one.module.weight_hh_l0 = value.clone()
    ids = torch.randint(1, 31, (3, 11))
    mask = torch.arange(11) >= torch.tensor(LENGTHS)[:, None]
    theirs.reset()
    states = theirs(ids)
    torch.testing.assert_close(ours.body.encode_layers(ids)[-1], states, atol=1e-5, rtol=1e-5)
    expected = core.masked_concat_pool(states, mask, bptt=11)
    found = SequenceHead(6, 2, "last_max_mean", 0.0).vectors(states, torch.tensor(LENGTHS))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
