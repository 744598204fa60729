"""Load a task from files: read, split, sample and check it before anything trains on it.

And typing errors in the inputs of examples, for a score on noisy text (claim K25): a word of four
letters or more has, with a given probability, two letters swapped, one dropped, or a neighbouring
key inserted or put instead, inside of it (Belinkov & Bisk 2018, arXiv:1711.02173). Errors depend
only on the seed, the example and the position of the word, and those of one rate stand at each
higher rate.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.randomness import bits, uniform
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.object_store import is_remote
from rungwise.core.storage.source_files import SourceFile
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.tasks.config import FilesTaskConfig, split_files
from rungwise.tasks.formats.base import count_damage, join_names, quote, suggest
from rungwise.tasks.formats.tagged import BARE, SPANS
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import (
    SPLITS,
    Answer,
    Example,
    Question,
    TaskInfo,
    Text,
    join_parts,
    read_examples,
)
from rungwise.tokenizer.token_text import document_hash

_WORD = re.compile(r"[^\W\d_]{4,}")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BESIDE = {
    key: row[max(0, n - 1) : n] + row[n + 1 : n + 2] for row in _ROWS for n, key in enumerate(row)
}

_NOISE_SEED = 0
Edit = tuple[int, int, str]  # [begin, end) of a text, and its replacement


def add_errors(examples: Sequence[Any], rate: float, seed: int) -> list[Any]:
    """Return the examples with an error in each word with probability `rate`, targets unchanged.

    Raises DataError if no word is changed: the model would seem robust.
    """
    copies = [_misspell(example, rate, seed) for example in examples]
    if copies == list(examples):
        raise DataError(
            f"evaluate.noise: {rate:g} changes none of the {len(copies)} test examples, of whose "
            "words those with four letters or more can be changed; leave it out, or raise it"
        )
    return copies


def read_splits(task: Artifact, noise: Sequence[float] = ()) -> dict[str, list[Any]]:
    """Read the examples by split. For each rate of `noise` there is another test split with typing
    errors, `noise_split(rate)`, the same for every model."""
    examples = {split: read_examples(task, split) for split in SPLITS}
    copies = {noise_split(rate): add_errors(examples["test"], rate, _NOISE_SEED) for rate in noise}
    return examples | copies


def noise_split(rate: float) -> str:
    """Return the name of the test split with errors at this rate."""
    return f"noise_{rate:g}"


def _misspell(example: Example, rate: float, seed: int) -> Example:
    key = document_hash(join_parts(example))
    answers = (example.answers or ()) if isinstance(example, Question) else ()
    fixed = {1: [(each.start, each.start + len(each.text)) for each in answers]}
    edits = [
        list(_edits(text, fixed.get(number, ()), rate, (seed, key, number)))
        for number, text in enumerate(example.parts)
    ]
    copy = example.replace_parts([*map(_apply, example.parts, edits)])
    if isinstance(copy, Question) and answers:
        shifted = tuple(Answer(each.text, _shift(each.start, edits[1])) for each in answers)
        return replace(copy, answers=shifted)
    return copy


def _edits(
    text: str, fixed: Sequence[tuple[int, int]], rate: float, place: tuple[int, int, int]
) -> Iterator[Edit]:
    """Yield the changes of words in order; words that overlap a range in `fixed` stay."""
    words = list(_WORD.finditer(text))
    changed_W = uniform(*place, np.arange(len(words)), 0) < rate
    numbers_W3 = bits(*place, np.arange(len(words))[:, None], np.arange(1, 4))
    for word, changed, numbers in zip(words, changed_W, numbers_W3.tolist(), strict=True):
        if changed and not any(word.start() < end and begin < word.end() for begin, end in fixed):
            yield word.start(), word.end(), _mistype(word[0], *numbers)


def _mistype(word: str, way: int, place: int, side: int) -> str:
    at = 1 + place % (len(word) - 2)
    letter = word[at]
    beside = _BESIDE.get(letter.lower(), word[at + 1])
    key = beside[side % len(beside)]
    key = key.upper() if letter.isupper() else key
    match way % 4:
        case 0:
            at = min(at, len(word) - 3)
            changed = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        case 1:
            changed = word[:at] + key + word[at:]
        case 2:
            changed = word[:at] + key + word[at + 1 :]
        case _:
            changed = word
    # Drop a letter, also where the error above changed nothing because letters are equal.
    return word[:at] + word[at + 1 :] if changed == word else changed


def _apply(text: str, edits: Sequence[Edit]) -> str:
    pieces, end = [], 0
    for begin, stop, new in edits:
        pieces += [text[end:begin], new]
        end = stop
    return "".join([*pieces, text[end:]])


def _shift(place: int, edits: Sequence[Edit]) -> int:
    """Return the position after the edits of what was at `place`."""
    return place + sum(len(new) - (stop - begin) for begin, stop, new in edits if stop <= place)


@dataclass(frozen=True)
class LoadedTask:
    """A loaded task: its splits, and what they have in common.

    `overlap` and `irregular` are as in TaskSummary; `notes` are lines for the user. `whole_train`
    is the training split before a budget was drawn from it, None without a budget.
    """

    info: TaskInfo
    splits: dict[str, list[Any]]
    overlap: dict[str, int] = field(default_factory=dict)
    irregular: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    whole_train: list[Any] | None = None


def load(config: FilesTaskConfig) -> LoadedTask:
    """Load the task of the config.

    Raises DataError, naming file and line, for data that no model should be trained on.
    """
    counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    splits: dict[str, list[Any]] = {
        split: _read_split(config, split, counts[split]) for split in config.paths()
    }
    shares = {split: getattr(config, f"{split}_fraction") for split in SPLITS[1:]}
    fractions = {split: share for split, share in shares.items() if share is not None}
    if fractions:
        splits |= split_examples(splits["train"], fractions, config.seed)
    splits = {split: splits[split] for split in SPLITS}
    for split, examples in splits.items():
        _check_filled(split, examples, config)
    labels = _order_labels(config, _labels(config, splits, counts))
    scheme = getattr(config.format, "scheme", "as_is")
    if scheme == "iob2" and config.metric != "accuracy":
        _check_tags(labels, splits)
    notes, whole_train = [], None
    if (number := config.train_examples) is not None:
        whole_train = splits["train"]
        splits["train"] = _draw_budget(config, number, whole_train, labels)
    for split in SPLITS[1:]:
        most = getattr(config, f"max_{split}_examples")
        if most is not None:
            splits[split] = draw_examples(splits[split], most, config.seed)
    info = TaskInfo(
        kind=config.format.task_kind,
        labels=labels,
        pair=any(isinstance(e, Text) and e.second is not None for e in splits["train"]),
        metric=_metric(config, labels),
    )
    shared = {
        split: int(find_overlap(splits["train"], splits[split]).sum()) for split in SPLITS[1:]
    }
    for split, number in shared.items():
        if number:
            notes.append(
                f"{number} of {len(splits[split])} {split} examples have a text that stands in "
                "train too; their score says what was remembered"
            )
    positive = task_kind(info).positive
    if positive and info.metric == "f1":
        notes.append(f"f1 is that of the label {quote(positive)}; data.positive sets it")
    irregular = {split: dict(reasons) for split, reasons in counts.items() if reasons}
    notes += [
        f"{split}: {reason.replace('_', ' ')}: {number:,}"
        for split, reasons in irregular.items()
        for reason, number in reasons.items()
    ]
    if labels and (idle := set(labels) - {label for e in splits["train"] for label in e.labels}):
        notes.append(f"no training example has the label {join_names(_sort_labels(idle))}")
    return LoadedTask(info, splits, shared, irregular, notes, whole_train)


def _read_split(config: FilesTaskConfig, split: str, counts: Counter[str]) -> list[Example]:
    """Read the examples of a split."""
    examples: list[Example] = []
    form = config.split_format(split)
    for file in form.select_files(split_files(config, split), counts):
        with _reading(file, split):
            examples.extend(form.read(file, split, counts))
    for what, (damaged, sound) in count_damage(examples, counts).items():
        if damaged > sound:
            reasons = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items())
            raise DataError(
                f"data.{split}: expected most {what} to be sound, found {sound:,} that are and "
                f"{damaged:,} that are not ({reasons}); set data.format.on_error to error to see "
                "the first fault, and check what data.format says"
            )
    return examples


def check_first_examples(config: FilesTaskConfig) -> None:
    """Read the first example of every file of this machine. Raises DataError as `load` does."""
    counts: Counter[str] = Counter()
    for split in config.paths():
        form = config.split_format(split)
        for file in form.select_files(split_files(config, split), counts):
            if not is_remote(file.uri):
                with _reading(file, split):
                    next(iter(form.read(file, split, counts)), None)


@contextlib.contextmanager
def _reading(file: SourceFile, split: str) -> Iterator[None]:
    try:
        with explain_connection_errors(file.uri, f"data.{split}"):
            yield
    except OSError as error:
        raise DataError(f"cannot read {file.uri}: {error.strerror or error}") from error


def _check_filled(split: str, examples: Sequence[Example], config: FilesTaskConfig) -> None:
    if not examples:
        paths = config.paths()
        key = split if split in paths else f"{split}_fraction"
        raise DataError(
            f"data.{key}: expected {split} examples, found none in "
            f"{', '.join(paths.get(split, paths['train']))}; change it, or name other files"
        )


def _labels(
    config: FilesTaskConfig, splits: dict[str, list[Any]], counts: dict[str, Counter[str]]
) -> tuple[str, ...]:
    """Return the names of the labels; reject, drop or keep examples whose label training lacks."""
    if not KINDS[config.format.task_kind].labelled:
        return ()
    known = {label for example in splits["train"] for label in example.labels}
    if len(known) < 2:
        raise DataError(
            f"data.train: expected two labels or more, found only {join_names(sorted(known))}; "
            "check which column data.format names, or change the file"
        )
    extra: set[str] = set()
    for split in SPLITS[1:]:
        accepted = []
        for example in splits[split]:
            unseen = [label for label in example.labels if label not in known]
            if unseen and config.unseen_labels == "error":
                source = split if split in config.paths() else "train"
                raise DataError(
                    f"data.{source}: {example.where}: the label {quote(unseen[0])} of this {split} "
                    f"example is on no training example{suggest(unseen[0], known)}; the labels "
                    f"there are {join_names(_sort_labels(known))}; mend the files, or set "
                    "data.unseen_labels to drop or keep"
                )
            if unseen:
                fate = "kept" if config.unseen_labels == "keep" else "dropped"
                counts[split][f"examples_{fate}_with_a_label_unseen_in_training"] += 1
                extra.update(unseen)
            if not unseen or config.unseen_labels == "keep":
                accepted.append(example)
        splits[split] = accepted
        _check_filled(split, accepted, config)
    known |= extra if config.unseen_labels == "keep" else set()
    stated = config.format.stated_labels
    return tuple(stated) if stated else tuple(_sort_labels(known))


def _order_labels(config: FilesTaskConfig, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels with the positive one of two as the second."""
    if config.positive is None:
        return labels
    if len(labels) != 2 or config.positive not in labels:
        raise DataError(
            f"data.positive: expected one of two labels, found {quote(config.positive)} of "
            f"{join_names(labels)}{suggest(config.positive, labels)}; change it, or leave it out"
        )
    return tuple(sorted(labels, key=lambda label: label == config.positive))


def _sort_labels(labels: set[str]) -> list[str]:
    if all(label.isascii() and label.isdigit() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def _draw_budget(
    config: FilesTaskConfig, number: int, examples: list[Example], labels: tuple[str, ...]
) -> list[Example]:
    balanced = KINDS[config.format.task_kind].one_label
    if number > len(examples):
        raise DataError(
            f"data.train_examples is {number}, but train has {len(examples)} examples; "
            "lower it, or leave it out to take all"
        )
    if balanced and number < len(labels):
        raise DataError(
            f"data.train_examples is {number}, but there are {len(labels)} labels "
            f"({join_names(labels)}); give each one example at least"
        )
    return draw_examples(examples, number, config.seed, balanced=balanced)


def _check_tags(labels: Sequence[str], splits: dict[str, list[Any]]) -> None:
    """Raise DataError if a few tags mark no spans: typing errors, which would change the metric."""
    spans = {label for label in labels if SPANS.fullmatch(label)} - {"O"}
    if len(bare := {label for label in labels if label in BARE} - {"O"}) > 2 and not spans:
        spans = bare  # such as B, M, E and S
    odd = set(labels) - spans - {"O"}
    if not odd or len(spans) <= len(odd) or not ("O" in labels or spans == bare):
        return
    for split, examples in splits.items():
        for example in examples:
            if unknown := odd.intersection(example.labels):
                tag = min(unknown)
                raise DataError(
                    f"data.{split}: {example.where}: the sentence that begins here has the tag "
                    f"{quote(tag)}, which marks no span{suggest(tag, spans)}, while the others do "
                    f"({join_names(_sort_labels(spans))}); mend the file, or set data.metric to "
                    "accuracy to score words"
                )


def _metric(config: FilesTaskConfig, labels: tuple[str, ...]) -> str:
    kind = task_kind(TaskInfo(config.format.task_kind, labels, False, ""))
    allowed = [name for name in kind.metric_names(()) if kind.metrics[name].selects]
    metric = config.metric or allowed[0]
    if metric not in allowed:
        raise DataError(
            f"data.metric: {metric} does not fit the labels of this task ({join_names(labels)}); "
            f"use {' or '.join(allowed)}"
        )
    return metric


def split_examples(
    examples: Sequence[Example], fractions: dict[str, float], seed: int
) -> dict[str, list[Example]]:
    """Split `examples` by about these fractions; the rest is "train". A group of examples, such as
    questions about one context, stays together."""
    bounds = np.cumsum(list(fractions.values()))
    splits = [*fractions, "train"]
    places = np.searchsorted(bounds, _draws([e.group for e in examples], seed), side="right")
    by_split: dict[str, list[Example]] = {split: [] for split in splits}
    for example, place in zip(examples, places, strict=True):
        by_split[splits[int(place)]].append(example)
    return by_split


def draw_examples(
    examples: Sequence[Example], number: int, seed: int, *, balanced: bool = False
) -> list[Example]:
    """Draw `number` of the examples, or all if there are fewer, in their original order; `balanced`
    from the labels in turn, so that all have equal numbers until one runs out."""
    draws = _draws([join_parts(example) for example in examples], seed)
    order = np.argsort(draws, kind="stable")
    if balanced:
        labels = [str(example.target) for example in examples if isinstance(example, Text)]
        assert len(labels) == len(examples), "only classes have a label an example"
        turns, ranks = Counter[str](), []
        for label in (labels[index] for index in order):
            ranks.append(turns[label])
            turns[label] += 1
        order = order[np.argsort(ranks, kind="stable")]
    return [examples[index] for index in np.sort(order[:number])]


def find_overlap(train: Sequence[Example], other: Sequence[Example]) -> NDArray[np.bool_]:
    """Mark the examples of `other` whose input is also in `train`."""
    texts = {join_parts(example) for example in train}
    return np.array([join_parts(example) in texts for example in other], dtype=bool)


def _draws(texts: Sequence[str], seed: int) -> NDArray[np.float64]:
    hashes = [document_hash(text) for text in texts]
    return uniform(seed, np.array(hashes, dtype=np.uint64))
