"""AWD-LSTM: sizes, what is dropped where, the terms in its gradient, spans; and the autoencoder."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.instances.batch import CausalBatch, DocumentRows
from rungwise.models.families.recurrent import (
    AUTOENCODER,
    AwdLstmConfig,
    LstmConfig,
    RecurrentForPretraining,
)
from rungwise.models.losses.objectives import CAUSAL

V, B, T = 29, 3, 12
DROPOUTS = ("dropout", "hidden_dropout", "input_dropout", "word_dropout", "recurrent_dropout")
PLAIN: dict[str, Any] = {
    **dict.fromkeys(DROPOUTS, 0.0),
    "alpha": 0,
    "beta": 0,
    "gradient_length": None,
}


def built(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 7, "embedding_size": 5, "initializer_range": 0.6}
    model = AwdLstmConfig(**(sizes | PLAIN | changes)).build(V, CAUSAL)
    assert isinstance(model, RecurrentForPretraining)
    return model.train()


def batch(model: Any, T: int = T) -> Any:
    torch.manual_seed(1)
    stream_BT = torch.randint(V, (B, T + 1))
    state = torch.randn(B, *model.state_shape) * 0.3
    return CausalBatch(stream_BT[:, :-1], stream_BT[:, 1:], torch.ones(B, T), state=state)


def stacked(
    model: Any, ids_BT: Tensor, state_BLSD: Tensor, masks: tuple[Tensor, ...] = ()
) -> Tensor:
    """The last output of `nn.LSTM`s with the same weights, those that hand on times `masks`."""
    body = model.awd_lstm
    x_BTD = body.token_embedding(ids_BT)
    for number, (before, after) in enumerate(itertools.pairwise(body.widths)):
        cells: Any = nn.LSTM(before, after, batch_first=True)
        cells.load_state_dict(body.layers[number].state_dict())
        if masks:
            cells.weight_hh_l0.data *= masks[number]
        h_BD, c_BD = state_BLSD[:, number, :, :after].unbind(1)
        x_BTD, _ = cells(x_BTD, (h_BD[None].contiguous(), c_BD[None].contiguous()))
    return x_BTD


def test_the_treebank_model_has_the_parameters_that_the_papers_code_prints() -> None:
    config = AwdLstmConfig()
    with torch.device("meta"):
        model = config.build(10_000, CAUSAL)
    assert sum(p.numel() for p in model.parameters()) == 24_221_600
    cells = 400 * 1150 + 1150**2 + 1150**2 + 1150**2 + 1150 * 400 + 400**2
    assert config.flops_per_token(10_000, 70, CAUSAL) == 6 * (4 * cells + 400 * 10_000)


def test_without_dropout_it_is_three_lstms_with_a_tied_output() -> None:
    model = built()
    rows = batch(model)
    total, _, after = model(rows)
    body: Any = model.body
    states = stacked(model, rows.ids, rows.state)
    logits = functional.linear(states, body.token_embedding.weight, model.bias)
    expected = functional.cross_entropy(
        logits.flatten(0, 1), rows.targets.flatten(), reduction="sum"
    )
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(after[:, 2, 0, :5], states[:, -1])
    assert (after[:, 2, :, 5:] == 0).all(), "behind the narrower layer"


def test_weight_drop_masks_raw_weights_anew_in_each_pass_and_evaluation_sees_them_whole() -> None:
    """Twice at a half would leave a quarter if a mask stayed; the masks are those of the seed."""
    model = built(recurrent_dropout=0.5)
    rows = batch(model)
    raw = {name: value.clone() for name, value in model.named_parameters()}
    for seed in (3, 4):
        torch.manual_seed(seed)
        found = model.read_block(rows.ids, rows.state)[0]
        torch.manual_seed(seed)
        cells = (layer.weight_hh_l0 for layer in model.awd_lstm.layers)
        masks = tuple(functional.dropout(torch.ones_like(each), 0.5) for each in cells)
        torch.testing.assert_close(found, stacked(model, rows.ids, rows.state, masks))
    assert all(torch.equal(value, raw[name]) for name, value in model.named_parameters())
    whole = model.eval().read_block(rows.ids, rows.state)[0]
    torch.testing.assert_close(whole, stacked(model, rows.ids, rows.state))


@pytest.mark.parametrize("place", ["input_dropout", "hidden_dropout", "dropout"])
def test_units_are_dropped_alike_in_a_row(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(**{place: 0.5})
    body: Any = model.awd_lstm
    inputs: list[Tensor] = []
    for layer in body.layers:
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    output, _ = model.read_block(batch(model).ids, None)
    places = [inputs[0], inputs[1], inputs[2], output]
    dropped = [number for number, each in enumerate(places) if (each == 0).any()]
    assert dropped == {"input_dropout": [0], "hidden_dropout": [1, 2], "dropout": [3]}[place]
    for number in dropped:
        gone = places[number] == 0
        assert torch.equal(gone, gone[:, :1].expand_as(gone))


def test_both_terms_join_the_gradient_and_not_the_value() -> None:
    """Merity et al. 2018, section 4.5, written out; a padded token has no part."""
    plain, model = built(dropout=0.5), built(dropout=0.5, alpha=2.0, beta=3.0)
    rows = batch(model)
    rows.weights[1, 8:] = 0
    torch.manual_seed(5)
    total, *_ = model(rows)
    total.backward()
    torch.manual_seed(5)
    expected, *_ = plain(rows)
    torch.testing.assert_close(total, expected)
    body: Any = plain.body
    h_BTD = body.encode(rows.ids, rows.state)[0][-1]
    torch.manual_seed(5)
    dropped_BTD = body.dropout(h_BTD)
    count = rows.weights.sum()
    active = (dropped_BTD**2 * rows.weights[:, :, None]).sum() / (count * 5)
    steps = rows.weights[:, 1:, None]
    changed = ((h_BTD[:, 1:] - h_BTD[:, :-1]) ** 2 * steps).sum() / (steps.sum() * 5)
    (expected + count * (2.0 * active + 3.0 * changed)).backward()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name, atol=1e-5, rtol=1e-4)


def test_gradients_end_at_spans_that_the_state_crosses() -> None:
    whole, model = built(), built(gradient_length=70)
    lengths = [model.awd_lstm.span_lengths(100_000) for _ in range(2)]
    assert all(sum(each) == 100_000 for each in lengths)
    assert lengths[0] != lengths[1]
    halves = [span for span in lengths[0][:-1] if span < 52]
    assert len(halves) / len(lengths[0]) == pytest.approx(0.05, abs=0.02)
    rest = [span for span in lengths[0][:-1] if span >= 52]
    assert sum(rest) / len(rest) == pytest.approx(70, abs=0.5)
    rows = batch(model, T=200)
    torch.testing.assert_close(model(rows)[:2], whole(rows)[:2])
    body: Any = model.body
    reached: list[Tensor] = []
    body.token_embedding.register_forward_hook(lambda *call: reached.append(call[2]) or call[2])
    states = body.encode(rows.ids, rows.state)[0][-1]
    reached[0].retain_grad()
    states[:, -1].sum().backward()
    gradient = reached[0].grad
    assert gradient is not None
    touched = gradient.abs().sum((0, 2)).nonzero().flatten()
    assert 100 < touched[0] < 200, "no token of an earlier span"
    with torch.no_grad():
        assert model.eval().awd_lstm.span_lengths(500) == [500]


def test_fine_tuning_reads_a_row_in_spans_whose_lengths_are_fixed() -> None:
    config = LstmConfig(num_layers=2, hidden_size=6, initializer_range=0.5)
    encoder = config.encoder(CAUSAL, V, 0.0).train()
    ids_BT = torch.randint(V, (B, T))
    whole = encoder(ids_BT)
    encoder.truncate(5)
    torch.testing.assert_close(encoder(ids_BT), whole)
    encoder(ids_BT)[:, -1].sum().backward()
    table = encoder.word_table()
    assert table.grad is not None
    early = set(ids_BT[:, :10].flatten().tolist()) - set(ids_BT[:, 10:].flatten().tolist())
    assert (table.grad[sorted(early)] == 0).all()


# The sequence autoencoder of Dai & Le 2015.


@torch.no_grad()
def test_a_document_is_written_from_its_own_last_state() -> None:
    """Each document alone, by two passes of `nn.LSTM`; padding changes nothing."""
    model: Any = LstmConfig(num_layers=2, hidden_size=8, initializer_range=0.7).build(
        V, AUTOENCODER
    )
    lengths = [9, 4, 1]
    rows = DocumentRows(torch.randint(V, (3, 9)), torch.tensor(lengths))
    cells = nn.LSTM(8, 8, 2, batch_first=True)
    names = {f"{key}_l{n}": f"lstm.layers.{n}.{key}_l0" for n in (0, 1) for key in _KEYS}
    cells.load_state_dict({ours: model.state_dict()[name] for ours, name in names.items()})
    expected = 0.0
    for ids_T, length in zip(rows.ids, lengths, strict=True):
        x_1TD = model.lstm.token_embedding(ids_T[None, :length])
        _, state = cells(x_1TD)
        shifted_1TD = torch.cat((torch.zeros(1, 1, 8), x_1TD[:, :-1]), dim=1)
        logits = functional.linear(
            cells(shifted_1TD, state)[0][0], model.lstm.word_table(), model.bias
        )
        expected += functional.cross_entropy(logits, ids_T[:length], reduction="sum").item()
    assert AUTOENCODER(model, rows).total.item() == pytest.approx(expected, rel=1e-5)


_KEYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
