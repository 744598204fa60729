"""The conditional random field against enumeration, and the tagger it is a head of."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.finetune import evaluate, finetune, restore
from rungwise.finetune.config import BilstmTop
from rungwise.finetune.model import Tagger, TaskModel, describe
from rungwise.tasks.kinds.heads import CrfHead, Rows
from tests.toy_tasks import config_of, stand_in, toy_data

C, WIDTH = 3, 5
WORDS = (4, 1, 3)  # of the rows that have any


def field() -> tuple[CrfHead, Rows, torch.Tensor, torch.Tensor]:
    """A head with random scores, its rows, the second without words, states and tags."""
    torch.manual_seed(0)
    head = CrfHead(WIDTH, C, 0.0).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    row_W = torch.tensor([0] * 4 + [2] + [3] * 3)
    rows = Rows(None, torch.arange(4), 4, row_W, torch.tensor([0, 2, 3, 5, 1, 1, 2, 3]))
    return head, rows, torch.randn(4, 6, WIDTH).double(), torch.randint(C, (8,))


def scores(head: CrfHead, emissions: np.ndarray) -> dict[tuple[int, ...], float]:
    """The score of every sequence of tags of one row."""
    first, follow, last = (getattr(head, n).detach().numpy() for n in ("first", "follow", "last"))
    return {
        tags: first[tags[0]]
        + sum(emissions[n, tag] for n, tag in enumerate(tags))
        + sum(follow[pair] for pair in itertools.pairwise(tags))
        + last[tags[-1]]
        for tags in itertools.product(range(C), repeat=len(emissions))
    }


def test_partition_loss_and_marginals_are_those_of_all_sequences() -> None:
    """All 81 sequences of three tags over four words, and those of the shorter rows."""
    head, rows, states, tags = field()
    emissions = head.train()(states, rows)
    logits = head.eval()(states, rows).detach()
    partitions = head.log_partition(emissions, rows)
    loss, begin = 0.0, 0
    for number, words in enumerate(WORDS):
        part = slice(begin, begin + words)
        each = scores(head, emissions[part].detach().numpy())
        partition = np.logaddexp.reduce(list(each.values()))
        assert partitions[number].item() == pytest.approx(partition, rel=1e-12)
        loss += partition - each[tuple(tags[part].tolist())]
        for word, tag in itertools.product(range(words), range(C)):
            share = sum(np.exp(s - partition) for path, s in each.items() if path[word] == tag)
            assert logits[part][word, tag].exp().item() == pytest.approx(share, rel=1e-9)
        begin += words
    found = head.loss(emissions, rows, tags)
    assert found.item() == pytest.approx(loss, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda e: head.loss(e, rows, tags), (emissions.detach().requires_grad_(),)
    )


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_language_model_of_zeros_leaves_the_tagger_as_it_is_bit_for_bit(after: int) -> None:
    """The weights that read the states are its only others."""
    torch.manual_seed(1)
    tops = (
        BilstmTop(hidden_size=6, num_layers=2, embedding_size=8, states_after=join)
        for join in (after, None)
    )
    joined, plain = (Tagger(7, 20, top, 0.0).double() for top in tops)
    layers = _layers(joined)
    with torch.no_grad():
        for one, other in zip(_layers(plain), layers, strict=True):
            for name, value in one.items():
                value.copy_(other[name][..., : value.shape[-1]])
        plain.embedding.weight.copy_(joined.embedding.weight)
    ids, lengths = torch.randint(20, (3, 9)), torch.tensor([9, 2, 5])
    states = torch.randn(3, 9, 7).double()
    expected = plain(states, lengths, ids)
    found = joined(torch.zeros_like(states), lengths, ids)
    assert torch.equal(found[..., : expected.shape[-1]], expected)
    assert not torch.equal(joined(states, lengths, ids), found), "the states are read"
    assert joined.out == found.shape[-1] == (19 if after == 2 else 12)


def _layers(tagger: Tagger) -> list[dict[str, Any]]:
    """The weights of each layer by name, lowest first, whichever part holds it."""
    layers = []
    for part in filter(None, (tagger.below, tagger.above)):
        for number in range(part.lstm.num_layers):
            named = part.lstm.named_parameters()
            layers.append({n.replace(f"_l{number}", ""): v for n, v in named if f"_l{number}" in n})
    return layers


def test_a_tagger_with_a_field_learns_and_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    top = {
        "kind": "bilstm",
        "num_layers": 2,
        "hidden_size": 8,
        "embedding_size": 6,
        "states_after": 1,
    }
    config = config_of(crf=True, top=top, adaptation={"kind": "frozen"}, epochs=12, dropout=0.0)
    data = toy_data("tagging")
    model = finetune(config, data, seed=0)
    assert isinstance(model.head, CrfHead)
    assert isinstance(model.top, Tagger)
    scores = evaluate(model, data, "test")
    assert scores.metrics["accuracy"] > 0.9
    again = restore(describe(model), model.state_dict())
    assert evaluate(again, data, "test").loss == scores.loss


def test_layers_may_be_read_side_by_side() -> None:
    data = toy_data("classification")
    config = config_of(adaptation={"kind": "features", "layers": [0, 2], "combine": "join"})
    model = TaskModel(config, data.info, data.pretrained).eval()
    ids = torch.randint(20, (2, 5))
    layers = model.encoder.layers(ids)
    torch.testing.assert_close(model.states(ids, None, None), torch.cat((layers[0], layers[2]), -1))
    assert model.head.linear.in_features == 32
