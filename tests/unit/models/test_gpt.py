"""GPT against the papers' formulas, and what a position may see; two directions.

The comparison with transformers is in reference/. The tests of what is seen cover BERT from left to
right as well; the two-direction model sees nothing of a token and all of the rest.

Shapes: B batch, T sequence, D hidden, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.models.families.gpt import DecoderBody, GptConfig
from rungwise.models.transformer.block import Boundaries
from tests.small_models import (
    CAUSAL_KINDS,
    VOCAB_SIZE,
    documents_of,
    lengths_of,
    logits_of,
    objective_of,
    random_causal_batch,
    shaken,
    small_config,
    small_model,
)


@pytest.mark.parametrize("kind", CAUSAL_KINDS)
def test_flops_are_what_pytorch_counts_but_for_the_future(kind):
    """PyTorch counts the skipped half of causal attention too."""
    B, T, V = 2, 12, 200
    wide: Any = {"local_window": 2 * T} if kind.startswith("modern") else {}
    with torch.device("meta"):
        model = small_model(kind, V, **wide)
        ids_BT, weights_BT = torch.zeros(B, T, dtype=torch.int64), torch.ones(B, T)
    with FlopCounterMode(display=False) as counter:
        model(CausalBatch(ids_BT, ids_BT, weights_BT)).total.backward()
    config: Any = small_config(kind, **wide)
    stacks = 2 if kind == "bidirectional" else 1
    future = stacks * 6 * config.num_layers * config.hidden_size * T
    counted = counter.get_total_flops() / (B * T) - future
    flops = config.flops_per_token(V, T, objective_of(kind))
    assert flops == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "read", "matrices", "far"),
    # Of modern_bert's two layers the second sees three places on either side.
    [("mlm_nsp", 4, 2, 0), ("modern_bert", 3, 3, 12 * 16 * (12 - 7))],
)
def test_flops_of_masked_models_are_what_pytorch_counts_but_for_far_keys(kind, read, matrices, far):
    """The last MLP is asked for the masked alone, and for [CLS] where there are pairs."""
    B, T, M, V = 2, 12, 3, 200
    with torch.device("meta"):
        model = small_model(kind, V)
        ids_BT, masked_BM = (torch.zeros(B, n, dtype=torch.int64) for n in (T, M))
    with FlopCounterMode(display=False) as counter:
        logits = model(MaskedBatch.to_predict(ids_BT, None, None, masked_BM))
        torch.cat([part.flatten() for part in logits if part is not None]).sum().backward()
    last_mlp = 6 * matrices * 16 * 32 * (1 - read / T)
    counted = counter.get_total_flops() / (B * T) - far + last_mlp
    flops = small_config(kind).flops_per_token(V, T, objective_of(kind), M)
    assert flops == pytest.approx(counted, rel=1e-12)


# The start: Radford et al. 2019, section 2.3.


def test_residual_outputs_start_smaller_by_the_root_of_twice_the_layers():
    config = GptConfig(num_layers=8, num_heads=4, hidden_size=128, intermediate_size=512)
    for norm, factor in (("pre", 1 / 4), ("post", 1.0)):
        gpt = DecoderBody(config.model_copy(update={"norm": norm}), 1000)
        scales = {
            "attention.query_key_value": 1.0,
            "attention.output": factor,
            "mlp.expand": 1.0,
            "mlp.contract": factor,
        }
        for name, scale in scales.items():
            weight = gpt.transformer.blocks[3].get_parameter(f"{name}.weight")
            assert weight.std().item() == pytest.approx(0.02 * scale, rel=0.03), name
        assert gpt.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.01)
        assert gpt.token_embedding.weight.abs().max() > 0.04  # GPT's normal is not cut


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("causal", {}),
        ("bidirectional", {}),
        ("left_to_right", {}),
        ("left_to_right", {"positions": "sinusoid"}),
    ],
)
@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), norm=st.sampled_from(["pre", "post"]))
def test_packed_documents_are_as_if_each_were_alone(kind, changes, seed, norm):
    torch.manual_seed(seed)
    # A sinusoid is as wide as words are at the start; here it has to show among shaken ones.
    model = shaken(small_model(kind, norm=norm, initializer_range=0.3, **changes)).double().eval()
    batch = random_causal_batch(3, 12)
    packed_BTV = logits_of(model, batch)
    for row, columns, alone in documents_of(batch):
        expected = logits_of(model, alone)[0]
        torch.testing.assert_close(packed_BTV[row, columns], expected, atol=1e-10, rtol=1e-9)


def changed_at(batch, place):
    """The same stream with another token at `place`: a target, and an id if it is not the last."""
    ids_BT, targets_BT = batch.ids.clone(), batch.targets.clone()
    other_B = (targets_BT[:, place - 1] if place else ids_BT[:, 0]) + 7
    if place:
        targets_BT[:, place - 1] = other_B % VOCAB_SIZE
    if place < ids_BT.shape[1]:
        ids_BT[:, place] = other_B % VOCAB_SIZE
    return replace(batch, ids=ids_BT, targets=targets_BT)


@pytest.mark.parametrize("norm", ["post", "pre"])
@settings(max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_a_token_is_predicted_from_all_of_its_row_but_itself(norm, seed):
    torch.manual_seed(seed)
    model = shaken(small_model("bidirectional", norm=norm)).eval()
    batch = random_causal_batch(3, 9, packed=False)
    before_BTV = logits_of(model, batch)
    lengths_B = lengths_of(batch)
    for place in range(10):  # of the stream: targets[t] is its token t + 1
        moved_BT = (logits_of(model, changed_at(batch, place)) - before_BTV).abs().amax(dim=2)
        for row in range(3):
            length = int(lengths_B[row])
            for t in range(length):
                if t + 1 == place:
                    assert moved_BT[row, t] == 0, "it saw the token it predicts"
                elif place <= length:
                    assert moved_BT[row, t] > 1e-5, f"target {t} did not see token {place}"
                else:
                    assert moved_BT[row, t] == 0, "it saw padding"


def test_the_right_reads_as_the_left_does_in_a_mirror():
    """With the weights of the left, and positions that mirror too, both give the same."""
    model = shaken(small_model("bidirectional")).bidirectional.eval()
    model.right_to_left.load_state_dict(model.left_to_right.state_dict())
    stream = torch.randint(VOCAB_SIZE, (1, 10))
    mirror = stream.flip(1)
    places = torch.zeros(1, 9, dtype=torch.int64)
    one_document, length = torch.zeros(1, 9, dtype=torch.int64), torch.tensor([9])
    there = model.encode(stream[:, :-1], stream[:, 1:], length, Boundaries(one_document, places))
    back = model.encode(mirror[:, :-1], mirror[:, 1:], length, Boundaries(one_document, places))
    left_TD, right_TD = there[0].chunk(2, dim=-1)
    left_back_TD, right_back_TD = back[0].chunk(2, dim=-1)
    # Target t of 9 is token t + 1 of 10: its right is the left of token 8 - t in the mirror.
    torch.testing.assert_close(right_TD[:8], left_back_TD[:8].flip(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(right_back_TD[:8], left_TD[:8].flip(0), atol=1e-5, rtol=1e-5)
