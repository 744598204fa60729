"""Texts that are written: what is learnt, by which loss, from which weights, and when they end."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from rungwise.core.configuration.config import validate
from rungwise.finetune import (
    FinetuneConfig,
    PretrainedBody,
    SplitData,
    TaskData,
    TaskModel,
    evaluate,
    finetune,
)
from rungwise.finetune.data import build_frame
from rungwise.finetune.loop import build, outputs
from rungwise.models.families.recurrent import LstmConfig
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskInfo, Text
from rungwise.tasks.kinds.heads import Rows
from rungwise.tasks.kinds.items import Frame
from rungwise.tasks.kinds.kind import Reading
from tests.small_models import objective_of, shaken, small_config
from tests.toy_tasks import word_tokenizer

INFO = TaskInfo("generation", (), False, "chrf")
LETTERS = "abcdef"
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
V = len(MARKS) + len(LETTERS)


@pytest.fixture
def letters() -> Tokenizer:
    return word_tokenizer(MARKS, LETTERS)


def config_of(**keys: Any) -> FinetuneConfig:
    usual = {"sequence_length": 13, "max_answer_tokens": 5, "dropout": 0, "batch_size": 20}
    return validate(FinetuneConfig, usual | keys)


def backwards() -> list[Text]:
    """Every text of one to three letters, and the same from its end, in a random order."""
    texts = [text for n in (1, 2, 3) for text in itertools.product(LETTERS, repeat=n)]
    random.Random(0).shuffle(texts)
    return [Text(str(n), " ".join(t), target=" ".join(t[::-1])) for n, t in enumerate(texts)]


def data_of(kind: str, tokenizer: Tokenizer, config: FinetuneConfig, **sizes: Any) -> TaskData:
    """`backwards` in splits without overlap, and a random model to begin with."""
    family, objective = small_config(kind, **sizes), objective_of(kind)
    torch.manual_seed(0)
    weights = dict(shaken(family.build(V, objective), 0.0).state_dict())
    pretrained = PretrainedBody(family, objective, V)
    frame, examples = build_frame(config, pretrained, tokenizer), backwards()
    parts = {"train": examples[80:], "validation": examples[:10], "test": examples[40:80]}
    splits = {
        name: SplitData(part, task_kind(INFO, config.reading).encode(part, tokenizer, frame))
        for name, part in parts.items()
    }
    return TaskData(INFO, splits, pretrained, weights, tokenizer)


@pytest.mark.parametrize("kind", ["causal", "mlm"])
def test_texts_that_were_never_seen_are_written_backwards(kind: str, letters: Tokenizer) -> None:
    config = config_of(learning_rate=0.01, epochs=12, weight_decay=0)
    sizes = {"num_layers": 1, "hidden_size": 32, "intermediate_size": 64}
    data = data_of(kind, letters, config, initializer_range=0.2, **sizes)
    scores = evaluate(finetune(config, data, 0), data, "test")
    assert scores.metrics["exact_match"] > 0.9
    assert scores.metrics["chrf"] > 0.9
    trivial = task_kind(INFO).baselines(data.splits["train"].examples, data.splits["test"].examples)
    assert set(trivial) == {"copy", "majority"}
    same = sum(e.text == e.target for e in data.splits["test"].examples)
    assert trivial["copy"]["exact_match"] == same / 40  # those that read the same both ways


@pytest.mark.parametrize("kind", ["causal", "llama", "left_to_right", "mlm", "modern_bert"])
def test_the_loss_is_of_targets_alone_from_what_is_before(kind: str, letters: Tokenizer) -> None:
    """Item by item, from rows that end where the token is to be written."""
    config = config_of()
    data = data_of(kind, letters, config)
    torch.manual_seed(1)
    model: TaskModel = shaken(build(config, data)).eval()
    items = data.splits["test"].items[:12]
    end = items[0].rows[0].ids[-1]
    losses, texts = [], []
    with torch.no_grad():

        def next_token(ids: list[int], second: int) -> torch.Tensor:
            segments = [0] * second + [1] * (len(ids) - second)
            states = model.states(torch.tensor([ids]), torch.tensor([segments]), None)
            return model.head.linear(states[0, -1])

        # So that half of the texts end at once.
        first = [next_token([*i.rows[0].ids[: i.rows[0].second]], i.rows[0].second) for i in items]
        model.head.linear.bias[end] += torch.stack([f.max() - f[end] for f in first]).quantile(0.5)

        for item in items:
            row = item.rows[0]
            for place in range(row.second, len(row.ids)):
                logits = next_token([*row.ids[:place]], row.second)
                losses.append(functional.cross_entropy(logits, torch.tensor(row.ids[place])))
            text = [*row.ids[: row.second]]
            while len(text) < row.second + 5 and end not in text[row.second :]:
                text.append(int(next_token(text, row.second).argmax()))
            texts.append([t for t in text[row.second :] if t != end])
    part = SplitData(data.splits["test"].examples[:12], items)
    assert len(losses) == sum(len(e.target.split()) + 1 for e in part.examples)
    found = evaluate(model, replace(data, splits={"test": part}), "test").loss
    assert found == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
    written = outputs(model, items)
    assert [ids.tolist() for ids in written] == texts
    assert len({len(text) for text in texts}) > 1, "some end before others"


def test_what_reads_both_ways_sees_all_of_the_source_and_nothing_ahead(letters: Tokenizer) -> None:
    data = data_of("mlm", letters, config_of())
    model: TaskModel = shaken(build(config_of(), data)).eval()
    ids = torch.tensor([[2, 4, 5, 3, 6, 7, 3]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    states = model.states(ids, segments, None)[0]
    for changed, moved in ((2, {0, 1, 2, 3, 4, 5, 6}), (5, {5, 6})):
        other = ids.clone()
        other[0, changed] = 9
        away = (model.states(other, segments, None)[0] - states).abs().amax(dim=1) > 1e-6
        assert set(away.nonzero().flatten().tolist()) == moved


@pytest.mark.parametrize("kind", ["causal", "llama", "lstm"])
def test_at_the_start_it_writes_as_it_was_pretrained_to(kind: str, letters: Tokenizer) -> None:
    """The logits of the vocabulary are those of the model of pretraining, its output included."""
    config, known = config_of(), slice(V)
    data = data_of("causal", letters, config)
    family = {
        "causal": small_config("causal"),
        "llama": small_config("llama", tied=False),
        "lstm": LstmConfig(hidden_size=16, num_layers=2, initializer_range=0.3),
    }[kind]
    objective = family.objective(None)
    trained: Any = shaken(family.build(V, objective)).eval()
    weights = dict(trained.state_dict())
    ids = torch.randint(4, V, (3, 9))
    places = torch.arange(9).repeat(3)
    rows = Rows(None, torch.arange(3), 3, torch.arange(3).repeat_interleave(9), places)
    expected = trained.logits(ids).flatten(0, 1)

    def logits(**keys: Any) -> torch.Tensor:
        own = TaskData(INFO, data.splits, PretrainedBody(family, objective, V), weights, letters)
        return build(config_of(**keys), own).eval()(ids, torch.zeros_like(ids), rows)

    torch.testing.assert_close(logits()[:, known], expected, atol=1e-5, rtol=1e-5)
    assert logits().shape == (27, V + 3)  # and the three marks
    for keys in ({"initialisation": "random"}, {"loaded_layers": 1}):
        assert not torch.allclose(logits(**keys)[:, known], expected, atol=0.1)


def test_both_texts_are_cut_in_their_own_room_and_a_cut_one_has_no_end(letters: Tokenizer) -> None:
    frame = Frame(10, 11, 12, 11)
    long = Text("1", "a b c d e f", target="a b c d e")
    [known] = task_kind(INFO, Reading(max_answer_tokens=3)).encode([long], letters, frame)
    assert known.rows[0].ids == (10, 4, 5, 6, 7, 8, 11, 4, 5, 6, 12)
    assert (known.places, known.target) == ((6, 7, 8), (4, 5, 6))
    assert known.cut
    [asked] = task_kind(INFO, Reading(max_answer_tokens=3)).encode(
        [Text("1", long.text)], letters, frame
    )
    assert asked.rows[0].ids == (10, 4, 5, 6, 7, 8, 11, 12)
    assert (asked.places, asked.target) == ((), None)
    [whole] = task_kind(INFO).encode([Text("1", "a", target="b c")], letters, frame)
    assert (whole.places, whole.target, whole.cut) == ((2, 3, 4), (5, 6, 12), False)
