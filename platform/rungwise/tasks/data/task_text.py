"""The text of a task without its labels, as a corpus for task-adaptive pretraining.

See Gururangan et al. 2020 (arXiv:2004.10964, section 4). Documents, from the training split only:

    classification, multilabel, regression, generation   the text, then its second text
    tagging     the words, with blanks between them where their script has any
    span        a context once, after all questions about it
    choice      a context once, then each question about it with all its options

Options keep the order of the data, right and wrong ones alike; any other choice would reveal the
answer. Targets are never read as text, but they may select examples.

The text of a task fits in memory, so this process builds it without Ray Data. The files have the
format of any corpus.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, assert_never, cast

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.in_memory import write_corpus
from rungwise.corpus.config import Rules
from rungwise.corpus.document import RawDocument
from rungwise.corpus.summary import CorpusSummary
from rungwise.tasks.kinds.examples import (
    ChoiceExample,
    Example,
    Question,
    Tagged,
    Text,
    read_examples,
)
from rungwise.tasks.stage import TaskTextConfig
from rungwise.tokens.segmenters import blanks_before

_SPLIT = "train"
_LABEL = "task"  # the origin of every document; says nothing about its class


def build_task_text(
    config: TaskTextConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> CorpusSummary:
    """Write the corpus of the input `task` to `output`.

    Raises DataError if there is too little text for both a training and a held-out part.
    """
    rules = Rules(
        minimum_characters=1, held_out_fraction=config.held_out_fraction, seed=config.seed
    )
    raw_documents = documents(alike(config, read_examples(inputs["task"], _SPLIT)))
    summary = write_corpus([raw_documents], rules, _LABEL, output)
    for split, direction in (("validation", "raise"), ("train", "lower")):
        if not getattr(summary.documents, split):
            raise DataError(
                f"the training examples of the task give {summary.documents.total} "
                f"documents, and none fell into {split}; {direction} task_text.held_out_fraction "
                f"(now {config.held_out_fraction}), or use a task with more examples"
            )
    return summary


def alike(config: TaskTextConfig, examples: Sequence[Example]) -> Sequence[Example]:
    """Return the examples that the config keeps.

    Raises ConfigError if it selects by labels or scores that the examples do not have.
    """
    for key, kind in (("labels", str), ("minimum_score", float)):
        value: Any = getattr(config, key)
        if value is None:
            continue
        if not all(isinstance(each, Text) and isinstance(each.target, kind) for each in examples):
            raise ConfigError(
                f"task_text.{key} is {value}, but not every example of the task is a text with "
                f"a {'label' if kind is str else 'score'}; leave it out, or take another task"
            )
        texts = cast(Sequence[Text], examples)
        keeps = value.__contains__ if kind is str else value.__le__
        examples = [each for each in texts if keeps(each.target)]
    return examples


def documents(examples: Sequence[Example]) -> Iterator[RawDocument]:
    """Yield the documents of examples of one kind; the ids say where they came from."""
    # For each context: where it first occurred, and the questions about it.
    contexts: dict[str, tuple[str, dict[str, None]]] = {}
    for example in examples:
        match example:
            case Text(where):
                yield RawDocument(where, _LABEL, ("\n".join(filter(None, example.parts)),))
            case Tagged(where, words):
                pairs = zip(blanks_before(words), words, strict=True)
                text = "".join(itertools.chain.from_iterable(pairs))
                yield RawDocument(where, _LABEL, (text,), segmented=True)
            case Question(where) | ChoiceExample(where):
                options = example.options if isinstance(example, ChoiceExample) else ()
                text = "\n".join(filter(None, (example.question, *options)))
                contexts.setdefault(example.context, (where, {}))[1][text] = None
            case _:
                assert_never(example)
    before = bool(examples) and isinstance(examples[0], Question)
    for context, (where, questions) in contexts.items():
        paragraphs = (*questions, context) if before else (context, *questions)
        yield RawDocument(where, _LABEL, paragraphs)
