"""The interface of a kind of task: a class per kind, made for one task. All that depends on the
kind is asked here; packages above know no kind by name.

Shapes: N examples, k sums each, C labels. The output of an item is an array of logits:

    classification  (C,)
    regression      ()
    tagging         (words, C)   the words of the item
    span            (T, 2)       start and end logits of every token of the row
    choice          (options,)
    generation      (tokens,)    not logits, but the ids that were written
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.tasks.kinds.examples import Example, TaskInfo, Text, check_encodable
from rungwise.tasks.kinds.items import Frame, Item, Pairs, Pooling
from rungwise.tasks.kinds.rivals import Rival
from rungwise.tasks.scoring.metrics import Numbers, Predictions, TaskMetric

if TYPE_CHECKING:  # reading a recipe needs no PyTorch
    from torch import Tensor

    from rungwise.tasks.kinds.heads import TaskHead

    LossSum = tuple[Tensor, int]  # the sum of the losses, and their number

Calibration = Mapping[str, float]
Prediction = dict[str, Any]
Rules = dict[str, list[Prediction]]  # the predictions of each rule


@dataclass(frozen=True)
class Reading:
    """How texts become rows, and outputs become answers. With `windows` a long text gives several
    items, as the context of a question always does; `stride` is the distance in tokens between
    them."""

    pairs: Pairs = "joined"
    windows: bool = False
    stride: int = 64
    max_answer_tokens: int = 30
    sequence_length: int = 128


@dataclass(frozen=True)
class Stand:
    """The model below a head, and how the head reads it."""

    width: int  # of a state
    num_tokens: int
    pooling: Pooling
    pooler: bool  # whether pretraining trained BERT's pooler
    dropout: float
    crf: bool = False


class Decision(NamedTuple):
    """A label of an example, of a word (tagging), or whether a label is present (multilabel)."""

    gold: str
    prediction: str
    confidence: float


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model, an array for each item, and the examples of the items. Ids that were
    written need the tokenizer."""

    arrays: Sequence[NDArray[Any]]
    items: Sequence[Item]
    examples: Sequence[Any]
    tokenizer: Tokenizer | None = None


@dataclass(frozen=True)
class Record:
    """The named values of an input, a row or an object, and the columns that the model needs."""

    values: Mapping[str, Any]
    where: str
    columns: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        """Whether there is a value; an empty one is "" in a file and NaN in a data frame."""
        value = self.values.get(name)
        return value is not None and value == value and value != ""

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            is_missing = name not in self.values or value != value
            problem = "missing" if is_missing else f"{value!r:.80} and not a text"
            raise DataError(
                f"{self.where}: {name} is {problem}; this model needs {', '.join(self.columns)}, "
                f"found {', '.join(map(str, self.values)) or 'nothing'}"
            )
        return check_encodable(value, self.where, name)

    def texts(self, name: str, values: Iterable[Any]) -> tuple[str, ...]:
        texts = tuple(values)
        if odd := [each for each in texts if not isinstance(each, str)]:
            raise DataError(f"{self.where}: {name} must be texts, found {odd[0]!r}")
        return tuple(check_encodable(each, self.where, name) for each in texts)


class TaskKind(ABC):
    """The kind of the task `info`. Its metrics begin with the default one."""

    name: ClassVar[str]
    metrics: ClassVar[Mapping[str, TaskMetric]]
    answer: ClassVar[str]  # key of the answer in a prediction
    columns: tuple[str, ...]  # those that a record of an input must have
    is_one_text: bool = False  # whether a bare text is an input
    labelled: ClassVar[bool] = False  # whether a task has a list of labels or tags
    one_label: ClassVar[bool] = False  # whether each example has exactly one of them
    writes: ClassVar[bool] = False  # whether the answer is written token by token
    pools: ClassVar[bool] = False  # whether the head reads one vector of each row
    target_per_place: ClassVar[bool] = False  # of an item's places, instead of one of the item
    finetune_keys: ClassVar[tuple[str, ...]] = ()  # of fine-tuning, that not every kind has
    words: ClassVar[str]  # the task in words, with the places {labels} and {input}
    real_targets: ClassVar[bool] = False  # real numbers, instead of indices
    numeric: ClassVar[bool] = False  # whether an answer is a number, whose score is an error

    def __init__(self, info: TaskInfo, reading: Reading | None = None) -> None:
        self.info = info
        self.reading = reading or Reading()
        self._numbers = {label: number for number, label in enumerate(info.labels)}

    @property
    def goal(self) -> str:
        """The task in words: `one of 3 labels for a text`."""
        an_input = "a pair of texts" if self.info.pair else "a text"
        return self.words.format(labels=len(self.info.labels), input=an_input)

    @property
    def positive(self) -> str | None:
        """The class of two whose F1 is the metric `f1`, None for another task."""
        return self.info.labels[1] if self.one_label and len(self.info.labels) == 2 else None

    # Inputs.

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of an input whose values are all texts."""
        return self.columns

    @abstractmethod
    def parse(self, record: Record) -> Example:
        """Make an example without a target. Raises DataError naming what is missing."""

    @abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, frame: Frame) -> list[Item]:
        """Encode `examples`, in their order, as one or more items each. Raises DataError, naming
        the example, for a target that the task does not have."""

    # Fine-tuning.

    def takes(self, key: str) -> bool:
        """Whether a setting of `finetune_keys` of some kind has a meaning for this task."""
        return key in self.finetune_keys

    @abstractmethod
    def build_head(self, stand: Stand) -> TaskHead:
        """Build the head, with random weights."""

    @staticmethod
    def loss_sums(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> LossSum:
        """Return the sum of the losses, times their class weights, and their number. By default
        the cross entropy of one class."""
        from torch.nn import functional

        return functional.cross_entropy(logits, targets, weights, reduction="sum"), len(targets)

    @staticmethod
    def count_classes(targets_N: Tensor, num_classes: int) -> Tensor:
        """Count the targets of each class, (C,) or more."""
        return targets_N.bincount(minlength=num_classes)

    def read_logits(
        self, logits: Tensor, items: Sequence[Item], compute: Callable[[Sequence[Item]], Tensor]
    ) -> Iterable[NDArray[Any]]:
        """Return the output of each item from the logits of their batch, without padding.
        `compute` returns the logits of other items."""
        # Copy: a view would keep the logits of the whole batch alive.
        return (part.numpy().copy() for part in self.split_logits(logits, items))

    def split_logits(self, logits: Tensor, items: Sequence[Item]) -> Iterable[Tensor]:
        """Split the logits of a batch into those of its items."""
        return logits

    # Answers.

    @abstractmethod
    def decode(self, outputs: Outputs, calibration: Calibration) -> list[Prediction]:
        """Predict each example as plain data."""

    def probabilities(self, outputs: Outputs) -> list[Any]:
        """Return the probabilities of all labels or options of each example; a list per word for
        tags. None for each example of a kind without them."""
        return [None] * len(outputs.examples)

    def calibrate(self, outputs: Outputs) -> dict[str, float]:
        """Fit what `decode` needs on the validation split: the threshold of a label
        (`label_threshold`, a probability) or of no answer (`null_threshold`, logits); else {}."""
        return {}

    @abstractmethod
    def rules(self, train: Sequence[Any], test: Sequence[Any]) -> Rules:
        """Predict `test` by simple rules that read little or none of the input."""

    def baselines(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Score each rule on `test`. `train` is the whole training split, whatever label budget a
        model gets. A model has learned something if it beats them (Gururangan et al. 2018,
        arXiv:1803.02324, show how much half of the input reveals)."""
        rules = self.rules(train, test)
        return {name: self.score(predictions, test) for name, predictions in rules.items()}

    def rivals(self) -> Sequence[Rival]:
        """List what people use for this kind without any pretraining; by default there is none."""
        return ()

    def metric_names(self) -> Iterable[str]:
        """Return the metrics that the labels allow."""
        return self.metrics

    def score(self, predictions: Predictions, examples: Sequence[Any]) -> dict[str, float]:
        """Compute every metric of the kind. Raises DataError for an example without a target or
        with a label that the task does not have."""
        self._check(predictions, examples)
        metrics = {name: self.metrics[name] for name in self.metric_names()}
        totals = {
            count: count(predictions, examples, self.info).sum(axis=0)
            for count in dict.fromkeys(metric.count for metric in metrics.values())
        }
        return {name: float(each.value(totals[each.count])) for name, each in metrics.items()}

    def sums(self, predictions: Predictions, examples: Sequence[Any]) -> Numbers:
        """Return the sums (N, k) of the examples; `value` of their total is the task's metric.
        Raises DataError as `score` does."""
        self._check(predictions, examples)
        return self.metrics[self.info.metric].count(predictions, examples, self.info)

    def value(self, totals: NDArray[Any]) -> Numbers:
        """Return the task's metric (...) from totals of sums (..., k)."""
        return self.metrics[self.info.metric].value(totals.astype(float, copy=False))

    def _check(self, predictions: Predictions, examples: Sequence[Any]) -> None:
        assert len(predictions) == len(examples), "a prediction an example"
        for example in examples:
            if example.gold is None:
                raise DataError(f"{example.where}: there is no target, so nothing can be measured")
            labels = example.gold if isinstance(example.gold, tuple) else (example.gold,)
            for label in labels if self.info.labels else ():
                self.label_number(label, example.where)

    # Errors, from the rows of predictions.

    def example_score(self, row: Mapping[str, Any]) -> float:
        """Score one example: 1 if right, or the error of a number."""
        return float(row["gold"] == row["prediction"])

    def decisions(self, row: Mapping[str, Any]) -> list[Decision]:
        """Return the decisions with a confidence; [] for a kind without probabilities. By default
        there is one, with the highest of them."""
        if (shares := row.get("probabilities")) is None:
            return []
        return [Decision(str(row["gold"]), str(row["prediction"]), max(shares))]

    def class_items(self, answer: Any) -> set[tuple[Any, ...]] | None:
        """Return the spans of an answer, each with its class first; None where decisions score the
        classes."""
        return None

    def answer_text(self, row: Mapping[str, Any], answer: Any) -> str:
        """Return a gold answer or a prediction of an example as readable text."""
        return str(answer)

    def label_number(self, label: Any, where: str, word: str = "label") -> int:
        """Return the index of a label. Raises DataError for one that the task does not have."""
        if label not in self._numbers:
            raise DataError(
                f"{where}: {word} {label!r} is none of the task's ({', '.join(self.info.labels)})"
            )
        return self._numbers[label]


class TextKind(TaskKind):
    """A kind whose example is a text or a pair of texts."""

    def __init__(self, info: TaskInfo, reading: Reading | None = None) -> None:
        super().__init__(info, reading)
        self.columns = ("text", "second") if info.pair else ("text",)
        self.is_one_text = not info.pair

    def parse(self, record: Record) -> Text:
        return Text(record.where, *(record.text(name) for name in self.columns))


def commonest(values: Iterable[Any] | Counter[str]) -> Any:
    """Return the most frequent value; the first in sorted order on a tie."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))
