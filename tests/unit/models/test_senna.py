"""SENNA's ranking model: losses by hand, windows in their documents, ranks, and its instances."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rungwise.evaluation.suites import language_models
from rungwise.evaluation.suites.base import Rung
from rungwise.evaluation.suites.language_models import HeldOutText, RanksSuite
from rungwise.instances.batch import CausalBatch
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import PaddedRows
from rungwise.instances.texts import CorruptedWordsConfig
from rungwise.models.families.nnlm import RANKING, SennaConfig
from rungwise.models.trained.capabilities import LanguageModel, RanksWords, WordVectors
from tests.conftest import SPECIAL_IDS
from tests.small_models import check_slopes, random_causal_batch, shaken

V, END = 17, 3
SMALL: dict[str, Any] = {"window": 5, "embedding_size": 3, "hidden_size": 6}


def built() -> Any:
    torch.manual_seed(0)
    return shaken(SennaConfig(**SMALL).build(V, RANKING), 0.5).double().eval()


def score(model: Any, ids: list[int | None]) -> float:
    """f of one window by hand; None stands for a missing word."""
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    table = weights["senna.token_embedding.weight"]
    missing = weights["senna.missing_embedding.weight"][0]
    x = np.concatenate([missing if each is None else table[each] for each in ids])
    hidden = np.clip(weights["senna.hidden.weight"] @ x + weights["senna.hidden.bias"], -1, 1)
    return float((weights["score.weight"] @ hidden + weights["score.bias"])[0])


def window(ids: list[int], document: list[int], place: int) -> list[int | None]:
    return [
        ids[t] if 0 <= t < len(ids) and document[t] == document[place] else None
        for t in range(place - 2, place + 3)
    ]


def test_the_losses_are_those_of_windows_worked_alone() -> None:
    """max(0, 1 - f(x) + f(x')) with the middle word replaced."""
    model = built()
    batch = random_causal_batch(3, 9, V, dtype=torch.float64)
    assert batch.document is not None
    total, right = 0.0, 0
    for row in range(3):
        length = int(batch.weights[row].sum())
        ids = batch.ids[row, :length].tolist()
        document = batch.document[row, :length].tolist()
        for place in range(length):
            text = window(ids, document, place)
            noise = [*text[:2], int(batch.targets[row, place]), *text[3:]]
            margin = score(model, text) - score(model, noise)
            total, right = total + max(0.0, 1 - margin), right + (margin > 0)
    sums = RANKING(model, batch)
    assert sums.total.item() == pytest.approx(total, rel=1e-9)
    assert sums.correct.item() == right
    whole = dataclasses.replace(batch, weights=torch.ones_like(batch.weights))
    alone = dataclasses.replace(whole, document=torch.zeros_like(batch.document))
    bare = dataclasses.replace(whole, document=None, positions=None)
    assert RANKING(model, alone).total.item() == pytest.approx(RANKING(model, bare).total.item())


def test_a_gradient_touches_the_words_of_the_window_and_the_other_word() -> None:
    """And along a random direction it is that of finite differences."""
    model = built()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    whole = CausalBatch(ids, torch.full((1, 5), 10), torch.ones(1, 5, dtype=torch.float64))
    RANKING(model, whole).loss().backward()
    check_slopes(model, lambda: RANKING(model, whole).loss().item(), least=1e-7)
    table = model.senna.token_embedding.weight
    assert table.grad.any(1).nonzero().flatten().tolist() == [5, 6, 7, 8, 9, 10]


def test_ranks_are_those_of_scores_by_hand() -> None:
    model = built()
    trained = SennaConfig(**SMALL).trained(model, RANKING, SPECIAL_IDS)
    assert isinstance(trained, RanksWords)
    assert isinstance(trained, WordVectors)
    assert not isinstance(trained, LanguageModel)
    assert trained.vectors([4, 5]).shape == (2, 3)
    text = [5, 9, END, 7, 8]
    stream, document = [END, *text], [0, 0, 0, 1, 1, 1]
    (ours,) = trained.ranks([text], [range(5)])
    for place, rank in enumerate(ours):
        around = window(stream, document, place + 1)
        scores = [score(model, [*around[:2], word, *around[3:]]) for word in range(V)]
        assert rank == 1 + sum(each > scores[text[place]] + 1e-12 for each in scores)
    assert [len(each) for each in trained.ranks([text, [6], []], [[4], [], []])] == [1, 0, 0]
    torch.nn.init.zeros_(model.score.weight)
    (ties,) = trained.ranks([text], [[0, 3]])
    assert ties.tolist() == [(V + 1) / 2] * 2


def test_the_suite_takes_words_evenly_from_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    def texts(rung: Any, end: int) -> list[HeldOutText]:
        return [HeldOutText("b", [7, 7, 7, 7], 4), HeldOutText("a", [5, 6], 2)]

    monkeypatch.setattr(language_models, "held_out_texts", texts)
    asked: list[Any] = []

    class Model:
        def ranks(self, texts: Any, places: Any) -> Any:
            asked.extend(places)
            yield from (np.array([float(np.e**place) for place in each]) for each in places)

    rung = cast(Rung, SimpleNamespace(model=Model(), special=SPECIAL_IDS))
    (items,) = RanksSuite(words=3).measure(rung, "ranks")
    assert asked == [[0], [0, 2]]
    assert items.metric == "log_rank"
    assert items.names == ["a", "b"]
    assert items.numbers.tolist() == [[0.0, 1.0], [2.0, 2.0]]


def test_random_words_are_drawn_evenly_by_epoch_and_instance() -> None:
    vocabulary = Vocabulary(V, SPECIAL_IDS)
    rng = np.random.default_rng(0)
    ids = rng.integers(5, V, (400, 33))
    rows = PaddedRows(np.arange(400), ids, np.full(400, 33), {}, None)
    config = CorruptedWordsConfig(sequence_length=32)
    first, again, later = (
        config.batch(rows, np.full(400, epoch), 1, vocabulary) for epoch in (0, 0, 1)
    )
    assert (first.targets == again.targets).all()
    assert (first.targets != later.targets).mean() > 0.8
    assert (first.ids == ids[:, :-1]).all()
    counts = np.bincount(first.targets.ravel(), minlength=V)
    assert not counts[:5].any()
    expected = 400 * 32 / (V - 5)
    assert ((counts[5:] - expected) ** 2 / expected).sum() < 31.3  # chi², 11, 0.1 %
    part = PaddedRows(np.arange(7, 9), ids[7:9], np.full(2, 33), {}, None)
    assert (
        config.batch(part, np.zeros(2, np.int64), 1, vocabulary).targets == first.targets[7:9]
    ).all()
