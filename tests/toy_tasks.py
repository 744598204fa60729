"""Tiny tasks of every kind as hand-built items, and a stand-in for what reads their answers.

In each, one of two tokens says the answer. The stand-ins take the place of the kinds where a test
is about training alone: their metric is the share of right answers, and they have no text.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.core.configuration.config import validate
from rungwise.finetune import FinetuneConfig, PretrainedBody, SplitData, TaskData
from rungwise.tasks import interface
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Kind, TaskInfo
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tasks.kinds.kind import Outputs, Pairs, TaskKind
from tests.small_models import VOCAB_SIZE, objective_of, small_config, small_model

FRAME = Frame(2, 3, 3, 16)
INFO: dict[Kind, TaskInfo] = {
    "classification": TaskInfo("classification", ("left", "right"), False, "accuracy"),
    "multilabel": TaskInfo("multilabel", ("left", "right"), False, "accuracy"),
    "regression": TaskInfo("regression", (), True, "accuracy"),
    "tagging": TaskInfo("tagging", ("O", "X"), False, "accuracy"),
    "span": TaskInfo("span", (), False, "accuracy"),
    "choice": TaskInfo("choice", (), False, "accuracy"),
    "generation": TaskInfo("generation", (), False, "accuracy"),
}


def config_of(**keys: Any) -> FinetuneConfig:
    """A config for rows of these tasks, as a recipe would give it."""
    usual = {"sequence_length": 16, "batch_size": 8, "epochs": 1, "learning_rate": 0.01}
    return validate(FinetuneConfig, usual | keys)


def word_tokenizer(special: Sequence[str], words: Iterable[str]) -> Tokenizer:
    """The special tokens come first; [UNK], among them, is what is no word."""
    ids = {name: number for number, name in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, "[UNK]"))
    tokenizer.add_special_tokens(list(special))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


# Kinds of `INFO`, and a pair in each way that it can be read.
WAYS: list[tuple[Kind, Pairs]] = [
    *((kind, "joined") for kind in INFO),
    ("regression", "both_orders"),
    ("regression", "apart"),
]


def toy_data(
    kind: Kind,
    objective: str = "mlm_nsp",
    examples: int = 24,
    pairs: Pairs = "joined",
    **changes: Any,
) -> TaskData:
    """A task of this kind, and a random model that pretends to have been pretrained."""
    rng = np.random.default_rng(7)
    splits = {}
    for name in ("train", "validation", "test"):
        items = [toy_item(kind, number, rng, pairs) for number in range(examples)]
        splits[name] = SplitData([item.target for item in items], items)
    torch.manual_seed(0)
    weights = small_model(objective, **changes).state_dict()
    config = small_config(objective, **changes)
    trained_on = objective_of(objective)
    words = Tokenizer(models.WordLevel())
    return TaskData(
        INFO[kind], splits, PretrainedBody(config, trained_on, VOCAB_SIZE), dict(weights), words
    )


def toy_item(kind: Kind, number: int, rng: np.random.Generator, pairs: Pairs = "joined") -> Item:
    """Words are 10 and more; 5 and 6 say the answer."""
    answer = int(rng.integers(0, 2))
    words = rng.integers(10, 40, size=rng.integers(2, 6)).tolist()
    match kind:
        case "classification":
            return Item((FRAME.one([*words, 5 + answer]),), number, answer)
        case "multilabel":
            has = (answer, int(rng.integers(0, 2)))
            marks = [mark if own else mark + 2 for mark, own in zip((5, 6), has, strict=True)]
            return Item((FRAME.one([*words, *marks, *marks]),), number, has)
        case "regression":
            rows = {
                "joined": (FRAME.two(words, [5 + answer]),),
                "both_orders": (FRAME.two(words, [5 + answer]), FRAME.two([5 + answer], words)),
                "apart": (FRAME.one(words), FRAME.one([5 + answer])),
            }
            return Item(rows[pairs], number, float(answer))
        case "tagging":
            tags = rng.integers(0, 2, size=len(words))
            row = FRAME.one([5 + int(tag) for tag in tags])
            places = tuple(range(1, len(words) + 1))
            return Item((row,), number, tuple(tags.tolist()), places)
        case "span":
            row = FRAME.two([8], [*words, *((5, 6) if answer else (7, 7))])
            end = len(row.ids) - 2
            places = tuple((n, n + 1) for n in range(len(words) + 2))
            return Item((row,), number, (end - 1, end) if answer else (0, 0), places)
        case "choice":
            options = [FRAME.two(words, [5]), FRAME.two(words, [6]), FRAME.two(words, [6, 7])]
            options[0], options[answer] = options[answer], options[0]
            return Item(tuple(options[: 2 + number % 2]), number, answer)
        case "generation":
            row = FRAME.two([*words, 5 + answer], [5 + answer])
            return Item((row,), number, row.ids[-2:], (row.second - 1, row.second))
    raise AssertionError(f"there is no toy task of {kind}")


class _Toy(TaskKind):
    """Answers without text. Examples are targets."""

    def encode(self, examples: Any, tokenizer: Any, frame: Frame) -> list[Item]:
        return [Item((frame.one([10]),), number, 0) for number in range(len(examples))]

    def calibrate(self, outputs: Outputs) -> dict[str, float]:
        return {"outputs": float(len(outputs.arrays))}

    def decode(self, outputs: Outputs, calibration: Any) -> list[Any]:
        if self.info.kind == "multilabel":
            return [{"answer": array > 0} for array in outputs.arrays]
        if self.info.kind == "generation":  # one word, and the end
            return [{"answer": [*array, FRAME.end, FRAME.end][:2]} for array in outputs.arrays]
        places = {"regression": None, "tagging": 1}.get(self.info.kind, 0)
        return [
            {"answer": array if places is None else array.argmax(axis=places)}
            for array in outputs.arrays
        ]

    def score(self, predictions: Any, examples: Any) -> dict[str, float]:
        right = [
            np.mean(np.abs(np.subtract(prediction["answer"], target)) < 0.5)
            for prediction, target in zip(predictions, examples, strict=True)
        ]
        return {"accuracy": float(np.mean(right))}


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kinds of tasks be ones that need no text."""
    toys = {name: type(kind.__name__, (_Toy, kind), {}) for name, kind in KINDS.items()}
    monkeypatch.setattr(interface, "KINDS", toys)
