"""Task stage: labelled examples in three splits, and the test scores of trivial rules. A task of
files is read, split, sampled and checked before anything trains on it.

And typing errors in the inputs of examples, for a score on noisy text: inside of a word of four
letters or more, two unlike neighbours change places with a given probability (Belinkov & Bisk 2018,
arXiv:1711.02173). Errors depend only on the seed, the example and the number of the word, and those
of one rate stand at each higher rate. The context of a question stays, since answers are places in
it."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError, explain_connection_errors
from rungwise.core.randomness import uniform
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.tasks.config import FilesTaskConfig, MadeTaskConfig, ParagraphTaskConfig, split_files
from rungwise.tasks.data import made
from rungwise.tasks.formats.base import DROPPED, join_names, quote, suggest
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import (
    SPLITS,
    Example,
    ExampleCounts,
    LoadedTask,
    Question,
    TaskInfo,
    TaskSummary,
    Text,
    join_parts,
    read_examples,
    write_examples,
)
from rungwise.tokenizer.token_text import document_hash

_WORD = re.compile(r"[^\W\d_]{4,}")


def build_task(
    config: ParagraphTaskConfig | MadeTaskConfig | FilesTaskConfig,
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
) -> TaskSummary:
    """Write the splits. `inputs` has the corpus that a task is made of, and is empty for files.
    Raises DataError, naming file and line, for data that no model should be trained on."""
    match config:
        case ParagraphTaskConfig():
            task = made.load_paragraphs(config, inputs["corpus"])
        case MadeTaskConfig():
            task = made.load(config, inputs["corpus"])
        case FilesTaskConfig():
            task = load(config)
    for split, examples in task.splits.items():
        write_examples(examples, output, split)
    for note in task.notes:
        context.report.note(note)
    counts = {split: len(examples) for split, examples in task.splits.items()}
    labels = f"  {len(task.info.labels)} labels" if task.info.labels else ""
    return TaskSummary(
        info=task.info,
        examples=ExampleCounts(**counts),
        # A balanced draw hides which label is the commonest; the whole training split shows it.
        baselines=task_kind(task.info).baselines(
            task.whole_train or task.splits["train"], task.splits["test"]
        ),
        overlap=task.overlap,
        irregular=task.irregular,
        headline=f"{task.info.kind}{labels}  {counts['train']} to train on  "
        f"{counts['validation']} to validate  {counts['test']} to test",
    )


def add_errors(examples: Sequence[Any], rate: float, seed: int = 0) -> list[Any]:
    """Return the examples with an error in each word with probability `rate`, targets unchanged.
    Raises DataError if no word is changed: the model would seem robust."""
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
    copies = {noise_split(rate): add_errors(examples["test"], rate) for rate in noise}
    return examples | copies


def noise_split(rate: float) -> str:
    """Return the name of the test split with errors at this rate."""
    return f"noise_{rate:g}"


def _misspell(example: Example, rate: float, seed: int) -> Example:
    key, numbers = document_hash(join_parts(example)), itertools.count()
    copy = example.change_texts(lambda text: _swap(text, rate, seed, key, next(numbers)))
    if isinstance(copy, Question) and isinstance(example, Question):
        return replace(copy, context=example.context)
    return copy


def _swap(text: str, rate: float, *place: int) -> str:
    """Change the places of two letters in each word that is drawn."""
    words = np.arange(len(_WORD.findall(text)))
    draws = iter(uniform(*place, words[:, None], np.arange(2)).tolist())

    def misspell(match: re.Match[str]) -> str:
        word, (error, inside) = match[0], next(draws)
        places = [n for n in range(1, len(word) - 2) if word[n] != word[n + 1]]
        if error >= rate or not places:
            return word
        at = places[int(inside * len(places))]
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    return _WORD.sub(misspell, text)


def load(config: FilesTaskConfig) -> LoadedTask:
    """Load the task of the config. Raises DataError, naming file and line, for data that no model
    should be trained on."""
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
    labels = _labels(config, splits, counts)
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
        notes.append(f"f1 is that of the label {quote(positive)}, the second one")
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
        try:
            with explain_connection_errors(file.uri, f"data.{split}"):
                examples.extend(form.read(file, split, counts))
        except OSError as error:
            raise DataError(f"cannot read {file.uri}: {error.strerror or error}") from error
    if counts[DROPPED] > len(examples):
        raise DataError(
            f"data.{split}: expected most examples to be sound, found {len(examples):,} that are "
            f"and {counts[DROPPED]:,} that are not; set data.format.on_error to error to see the "
            "first fault, and check what data.format says"
        )
    return examples


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
    """Return the names of the labels; reject or keep examples whose label training lacks."""
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
        for example in splits[split]:
            unseen = [label for label in example.labels if label not in known]
            if unseen and config.unseen_labels == "error":
                source = split if split in config.paths() else "train"
                raise DataError(
                    f"data.{source}: {example.where}: the label {quote(unseen[0])} of this {split} "
                    f"example is on no training example{suggest(unseen[0], known)}; the labels "
                    f"there are {join_names(_sort_labels(known))}; mend the files, or set "
                    "data.unseen_labels to keep"
                )
            if unseen:
                counts[split]["examples_kept_with_a_label_unseen_in_training"] += 1
                extra.update(unseen)
    return config.format.stated_labels or tuple(_sort_labels(known | extra))


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


def _metric(config: FilesTaskConfig, labels: tuple[str, ...]) -> str:
    kind = task_kind(TaskInfo(config.format.task_kind, labels, False, ""))
    allowed = [name for name in kind.metric_names() if kind.metrics[name].selects]
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
