"""Every pretrained model as an encoder: what its states have read, and how its weights get in.

Shapes: B batch, T sequence, D hidden, E width, V vocabulary.
"""

from typing import Any

import pytest
import torch

from rungwise.core.errors import ConfigError, DataError
from rungwise.models.trained.encoders import NUM_MARKS, count_marks
from tests.small_models import (
    CAUSAL_KINDS,
    KINDS,
    LENGTH,
    VOCAB_SIZE,
    objective_of,
    random_causal_batch,
    shaken,
    small_config,
    small_model,
)

V, D = VOCAB_SIZE, 16
CASES = [*((kind, {}) for kind in KINDS), ("causal", {"norm": "post"}), ("mlm", {"norm": "pre"})]
IDS = ["-".join((kind, *changes.values())) for kind, changes in CASES]


def encoder_of(kind, dropout=0.0, **changes):
    """A random encoder with its new tokens."""
    return small_config(kind, **changes).encoder(
        objective_of(kind), V, dropout, count_marks(objective_of(kind))
    )


def loaded(kind, loaded_layers=None, **changes):
    """An encoder, and the pretraining model whose weights it has."""
    model = shaken(small_model(kind, **changes))
    encoder = encoder_of(kind, **changes)
    encoder.load(model.state_dict(), loaded_layers)
    return encoder, model


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=IDS)
def test_the_states_do_not_depend_on_padding(kind, changes):
    encoder = shaken(encoder_of(kind, dropout=0.1, **changes)).eval()
    ids_BT = torch.randint(V + count_marks(objective_of(kind)), (3, 9))
    segments_BT = torch.randint(2, (3, 9))
    lengths = [9, 4, 1]
    together = encoder.layers(ids_BT, segments_BT, torch.tensor(lengths))
    assert len(together) == encoder.num_layers + 1
    assert torch.equal(encoder(ids_BT, segments_BT, torch.tensor(lengths)), together[-1])
    for row, length in enumerate(lengths):
        alone = encoder.layers(ids_BT[[row], :length], segments_BT[[row], :length])
        for one, many in zip(alone, together, strict=True):
            assert many.shape == (3, 9, encoder.width)
            torch.testing.assert_close(many[[row], :length], one, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=IDS)
def test_a_state_has_read_what_its_family_reads(kind, changes):
    """Another token at a place moves the states behind it, and in front of it if both sides are
    read; of the two-direction model the left half behind it and the right half in front of it."""
    encoder = shaken(encoder_of(kind, **changes)).eval()
    T, place = 8, 3
    ids_BT = torch.randint(V, (2, T))
    other_BT = ids_BT.clone()
    other_BT[:, place] = (other_BT[:, place] + 7) % V
    lengths_B = torch.tensor([T, 6])
    states, others = (encoder(ids, None, lengths_B) for ids in (ids_BT, other_BT))
    moved_BTE = (states - others).abs() > 0
    behind_T = torch.arange(T) >= place
    for row, length in enumerate(lengths_B.tolist()):
        moved_TE, behind = moved_BTE[row, :length], behind_T[:length]
        if kind == "bidirectional":
            left, right = moved_TE[:, :D].any(-1), moved_TE[:, D:].any(-1)
            assert torch.equal(left, behind)
            assert torch.equal(right, torch.arange(length) <= place)
        elif encoder.causal:
            assert torch.equal(moved_TE.any(-1), behind)
        else:
            assert moved_TE.any(-1).all()
    assert encoder.causal == (kind in ("causal", "left_to_right", "modern_left_to_right", "llama"))


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=IDS)
def test_a_level_is_every_parameter_once(kind, changes):
    encoder = encoder_of(kind, **changes)
    levels = encoder.depth()
    listed = [id(parameter) for level in levels for parameter in level]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(parameter) for parameter in encoder.parameters()}
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    assert all("embedding" in names[id(parameter)] for parameter in levels[0])
    for number, level in enumerate(levels[1:]):
        blocks = [n for p in level if ".blocks." in (n := names[id(p)])]
        assert all(f".blocks.{number}." in name for name in blocks)
        assert len(blocks) >= len(level) - 4  # the norms at the end of pre-norm stacks


@pytest.mark.parametrize("kind", KINDS)
def test_the_states_are_those_of_pretraining(kind):
    encoder, model = loaded(kind)
    ids_BT = torch.randint(V, (2, 9))
    if kind == "bidirectional":
        return  # the next test
    torch.testing.assert_close(encoder(ids_BT), model.body.encode(ids_BT))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_bidirectional_state_is_that_of_pretraining_on_both_sides(norm):
    """Pretraining predicts token t + 1 from f_t and b_(t+1), and b_t here is b_t there: the same
    tokens at the same places."""
    encoder, model = loaded("bidirectional", norm=norm)
    batch = random_causal_batch(3, 9, packed=False)
    lengths_B = batch.weights.sum(dim=1).long()
    predicting_BTE = model.bidirectional.encode(batch.ids, batch.targets, lengths_B)
    # A row of n targets holds n + 1 tokens.
    row_BT = torch.cat((batch.ids, batch.targets[:, -1:]), dim=1)
    for row, length in enumerate(lengths_B.tolist()):
        row_BT[row, length] = batch.targets[row, length - 1]
    states_BTE = encoder(row_BT, None, lengths_B + 1)
    for row, length in enumerate(lengths_B.tolist()):
        left, right = predicting_BTE[row, :length].split(D, dim=-1)
        torch.testing.assert_close(states_BTE[row, :length, :D], left)
        # There b_(t+1) has read x_(t+2) and on; here that is the state of token t + 2.
        torch.testing.assert_close(states_BTE[row, 2 : length + 1, D:], right[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_new_tokens_are_for_what_was_pretrained_on_blocks(kind):
    encoder, model = loaded(kind)
    added = NUM_MARKS if kind in CAUSAL_KINDS else 0
    assert encoder.word_table().shape == (V + added, D)
    pretrained = next(t for n, t in model.state_dict().items() if "token_embedding" in n)
    assert torch.equal(encoder.word_table()[:V], pretrained)
    fresh = encoder.word_table()[V:]
    assert (fresh.abs().sum(dim=1) > 0).all()
    assert (fresh.abs() < 0.1).all(), "drawn as all embeddings are"
    assert encoder(torch.tensor([[V + added - 1]])).shape == (1, 1, encoder.width)


@pytest.mark.parametrize("kind", ["mlm", "causal", "bidirectional"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_only_the_lowest_layers_are_loaded(kind, count):
    model = shaken(small_model(kind, norm="pre"))
    encoder = encoder_of(kind, norm="pre")
    start = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.load(model.state_dict(), count)
    for name, tensor in encoder.state_dict().items():
        block = int(name.partition(".blocks.")[2].partition(".")[0] or -1)
        is_loaded = count == 2 if "final_norm" in name else block < count
        if "token_embedding" in name:
            assert torch.equal(tensor[:V], model.state_dict()[name])
            assert torch.equal(tensor[V:], start[name][V:])
        else:
            assert torch.equal(tensor, (model.state_dict() if is_loaded else start)[name]), name


def test_the_first_tensor_that_does_not_fit_is_named_and_nothing_is_copied():
    pretrained = small_model("mlm_nsp").state_dict()
    encoder: Any = small_config("mlm_nsp").encoder(objective_of("mlm_nsp"), V + 1, 0.0)
    before = encoder.bert.position_embedding.weight.clone()
    message = r"bert\.token_embedding\.weight: expected shape \[51, 16\], found \[50, 16\]"
    with pytest.raises(DataError, match=message):
        encoder.load(pretrained)
    assert torch.equal(encoder.bert.position_embedding.weight, before)
    del pretrained["bert.transformer.blocks.0.mlp.expand.bias"]
    message = r"lack bert\.transformer\.blocks\.0\.mlp\.expand\.bias, expected with shape \[32\]"
    with pytest.raises(DataError, match=message):
        encoder_of("mlm_nsp").load(pretrained)


def test_layers_left_over_are_an_error():
    pretrained = small_model("causal").state_dict()
    for loaded_layers in (None, 1):
        with pytest.raises(DataError, match=r"hold gpt\.transformer\.blocks\.1\."):
            encoder_of("causal", num_layers=1).load(pretrained, loaded_layers)


def test_the_longest_row_is_the_number_of_learned_positions():
    for kind in KINDS:
        encoder = encoder_of(kind).eval()
        assert encoder.max_length == LENGTH
        assert encoder(torch.zeros((1, LENGTH), dtype=torch.int64)).shape[1] == LENGTH
    assert encoder_of("mlm", positions="sinusoid").max_length is None


def test_dropout_is_that_of_fine_tuning_and_model_and_objective_must_fit():
    rates = {m.p for m in encoder_of("mlm", 0.3).modules() if isinstance(m, torch.nn.Dropout)}
    assert rates == {0.3}
    with pytest.raises(ConfigError, match=r"but model\.kind is bert"):
        small_config("mlm").objective("causal")
