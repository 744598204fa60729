"""The two-direction model: what it may see of a token (nothing) and of the rest (everything).

Shapes: B batch, T sequence, D hidden, V vocabulary.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.models.transformer.attention import Boundaries
from tests.small_models import (
    VOCAB_SIZE,
    lengths_of,
    logits_of,
    random_causal_batch,
    shaken,
    small_model,
)


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
