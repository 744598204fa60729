"""Same weights, same numbers as transformers' GPT-2 and GPT-1, float32, to 1e-5.

Every weight is random, biases and LayerNorm too, so that none can sit in the wrong place unseen.
Weights go over by rungwise.serving.hugging_face, whose own tests are beside this file.

Shapes: B batch, T sequence, V vocabulary.
"""

from typing import Any

import pytest
import torch
import transformers

from rungwise.instances.batch import CausalBatch
from rungwise.models.losses.objectives import CAUSAL
from rungwise.models.transformer.attention import Boundaries
from rungwise.serving.hugging_face import load_model

TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
VOCAB_SIZE = 97


@pytest.fixture(scope="module", params=["gpt2", "gpt1"])
def pair(request, tmp_path_factory):
    """Theirs and ours, of the same weights."""
    torch.set_num_threads(1)
    torch.manual_seed(26)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 20,
    }
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    if request.param == "gpt2":
        config = transformers.GPT2Config(**sizes, **no_dropout, **ends)
        theirs = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.OpenAIGPTConfig(**sizes, **no_dropout)
        theirs = transformers.OpenAIGPTLMHeadModel(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp(request.param)
    theirs.eval().save_pretrained(folder)
    family: Any
    family, state = load_model(folder)
    assert family.norm == ("pre" if request.param == "gpt2" else "post")
    ours = family.build(VOCAB_SIZE, family.objective("causal"))
    ours.load_state_dict(state)
    return ours.eval(), theirs


@torch.no_grad()
def test_same_weights_same_numbers(pair):
    ours, theirs = pair
    ids_BT = torch.randint(VOCAB_SIZE, (5, 18))
    expected = theirs(input_ids=ids_BT, output_hidden_states=True)
    assert expected.logits.std() > 0.3, "logits that hardly vary prove little"
    torch.testing.assert_close(ours.logits(ids_BT), expected.logits, **TOLERANCE)
    hidden_BTD = ours.gpt.encode(ids_BT)
    torch.testing.assert_close(hidden_BTD, expected.hidden_states[-1], **TOLERANCE)


@torch.no_grad()
def test_packed_documents_are_theirs_one_by_one(pair):
    ours, theirs = pair
    ids_BT = torch.randint(VOCAB_SIZE, (1, 18))
    document_BT = torch.tensor([[0] * 5 + [1] * 12 + [2]])
    positions_BT = torch.tensor([[*range(5), *range(12), 0]])
    packed = ours.logits(ids_BT, Boundaries(document_BT, positions_BT))
    for columns in (slice(0, 5), slice(5, 17), slice(17, 18)):
        expected = theirs(input_ids=ids_BT[:, columns]).logits
        torch.testing.assert_close(packed[:, columns], expected, **TOLERANCE)


def test_the_loss_and_its_gradient_are_the_same(pair):
    """Their loss is the mean over all that is labelled, which is our sum over our count."""
    ours, theirs = pair
    torch.manual_seed(27)
    stream = torch.randint(VOCAB_SIZE, (4, 19))
    weights_BT = (torch.arange(18) < torch.tensor([18, 11, 5, 1])[:, None]).float()
    labels = torch.where(weights_BT > 0, stream[:, 1:], -100)
    # They shift the labels by one themselves.
    shifted = torch.cat((torch.full((4, 1), -100), labels), dim=1)
    expected = theirs(input_ids=stream, labels=shifted).loss
    batch = CausalBatch(stream[:, :-1], stream[:, 1:], weights_BT)
    loss = CAUSAL(ours, batch).loss()
    torch.testing.assert_close(loss, expected, **TOLERANCE)

    theirs.zero_grad()
    ours.zero_grad()
    expected.backward()
    loss.backward()
    norms = [
        torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
        for model in (ours, theirs)
    ]
    torch.testing.assert_close(*norms, atol=1e-5, rtol=1e-4)
    tokens, positions = list(theirs.parameters())[:2]
    for name, other in (("token_embedding", tokens), ("position_embedding", positions)):
        gradient = ours.get_parameter(f"gpt.{name}.weight").grad
        torch.testing.assert_close(gradient, other.grad, atol=1e-5, rtol=1e-4)
