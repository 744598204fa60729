"""The training text of a task without its labels, as a corpus for task-adaptive pretraining
(Gururangan et al. 2020, arXiv:2004.10964, section 4), and its pairs as tokens, for pretraining on
pairs. A task fits in memory, so there is no Ray Data here."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from rungwise.core.errors import ConfigError, DataError, format_count
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.tokens import TokenisedText
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.document import RawDocument
from rungwise.corpus.summary import CorpusSummary
from rungwise.tasks.config import TaskTextConfig, TaskTokensConfig
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskInfo, TaskSummary, Text, read_examples
from rungwise.tokenizer import CLEAN_UP, TokenizerSummary, load_tokenizer
from rungwise.tokenizer.encoder import TextEncoder, choose_encoder, open_encoder
from rungwise.tokenizer.token_building import count_no_tokens, summarise_files
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import document_hash, write_tokens

_SPLIT = "train"
_TASK = "task"  # the origin of every document; says nothing about its class


def build_task_text(
    config: TaskTextConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> CorpusSummary:
    """Write the corpus of the input `task` to `output`. Raises DataError if there is too little
    text for both a training and a held-out part, ConfigError if the config selects by labels that
    the examples do not have."""
    examples = read_examples(inputs["task"], _SPLIT)
    if config.labels is not None:
        if not all(isinstance(each.gold, str) for each in examples):
            raise ConfigError(
                f"task_text.labels is {config.labels}, but not every example of the task is a text "
                "with a label; leave it out, or take another task"
            )
        examples = [each for each in examples if each.gold in config.labels]
    rules = DocumentRules(
        minimum_characters=1, held_out_fraction=config.held_out_fraction, seed=config.seed
    )
    summary = write_corpus([documents(examples)], rules, _TASK, output)
    for split, direction in (("validation", "raise"), ("train", "lower")):
        if not getattr(summary.documents, split):
            raise DataError(
                f"the training examples of the task give {summary.documents.total} "
                f"documents, and none fell into {split}; {direction} task_text.held_out_fraction "
                f"(now {config.held_out_fraction}), or use a task with more examples"
            )
    return summary


def documents(examples: Sequence[Example]) -> Iterator[RawDocument]:
    """Yield the documents of examples of one kind; the ids say where they came from."""
    # For each shared text: where it first occurred, and what is about it.
    contexts: dict[str, tuple[Example, dict[str, None]]] = {}
    for example in examples:
        if example.shared:
            context = getattr(example, example.shared)
            contexts.setdefault(context, (example, {}))[1][example.written] = None
        else:
            texts = (example.written,)
            yield RawDocument(example.where, _TASK, texts, segmented=example.segmented)
    for context, (first, others) in contexts.items():
        begins = first.inputs[0] == first.shared
        paragraphs = (context, *others) if begins else (*others, context)
        yield RawDocument(first.where, _TASK, paragraphs)


_SPLITS = ("train", "validation")
_PAIRS_PER_FILE = 1 << 16


def encode_pairs(
    config: TaskTokensConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> TokensSummary:
    """Encode the pairs of the input `task` with the input `tokenizer`. Raises DataError if the task
    is neither a classification of pairs nor one of generation, or if its training pairs have only
    one label."""
    info = TaskSummary.of(inputs["task"]).info
    kind = task_kind(info)
    writes = kind.writes
    if not writes and not (kind.one_label and info.pair):
        raise DataError(
            "pairs need a task with one label for a pair of texts, or with a text to write for "
            f"another, found {kind.goal}; name another one as the task of the step"
        )
    splits = {split: read_examples(inputs["task"], split) for split in _SPLITS}
    labels = {example.target for example in splits["train"]}
    if not writes and len(labels) < 2:
        raise DataError(
            "labelled pairs need at least two labels to learn from, but the training pairs have "
            f"{', '.join(map(repr, labels)) or 'none'}; name another task in the step"
        )
    folder, tokenizer = inputs["tokenizer"].folder, TokenizerSummary.of(inputs["tokenizer"])
    sample = _texts(splits["train"][:_PAIRS_PER_FILE])
    choice = choose_encoder(load_tokenizer(folder), sample)
    if choice.notice is not None:
        context.report.note(choice.notice)
    encoder = open_encoder(folder, choice)
    rows, counts = [], count_no_tokens(tokenizer.vocab_size)
    for split, examples in splits.items():
        for number, first in enumerate(range(0, len(examples), _PAIRS_PER_FILE)):
            part = examples[first : first + _PAIRS_PER_FILE]
            text, text_bytes = encode_examples(part, info, encoder)
            file = f"{split}-{number:05d}.arrow"
            with output.staged(file) as path:
                write_tokens(text, path)
                sha256 = file_digest(path)
            counts[split] += np.bincount(text.ids, minlength=tokenizer.vocab_size)
            rows.append(
                {
                    "file": file,
                    "split": split,
                    "source": _TASK,
                    "sha256": sha256,
                    "documents": len(text.documents),
                    "sentences": len(text.starts) - 1,
                    "tokens": len(text.ids),
                    "text_bytes": text_bytes,
                }
            )
    summary = summarise_files(rows, tokenizer, counts)
    pairs = summary.documents.total
    empty = sum(map(len, splits.values())) - pairs
    labelled = "" if writes else f"{len(info.labels)} labels  "
    headline = f"{format_count(pairs, 'pair')}  {labelled}{summary.headline}"
    if empty:
        headline += f"  {format_count(empty, 'pair')} left out for a text without tokens"
    return summary.model_copy(update={"labels": info.labels, "headline": headline})


def encode_examples(
    examples: Sequence[Text], info: TaskInfo, encoder: TextEncoder
) -> tuple[TokenisedText, int]:
    """Encode pairs, without those of which a text has no tokens, and count their bytes of UTF-8."""
    numbers: dict[object, int] = {label: number for number, label in enumerate(info.labels)}
    encoded = encoder.encode(_texts(examples))
    keep = encoded.lengths.reshape(-1, 2).min(axis=1) > 0
    lengths = encoded.lengths[np.repeat(keep, 2)]
    full = [example for example, filled in zip(examples, keep.tolist(), strict=True) if filled]
    text = TokenisedText(
        ids=encoded.ids[np.repeat(np.repeat(keep, 2), encoded.lengths)],
        starts=np.append(0, np.cumsum(lengths)).astype(np.int64),
        first_sentence=2 * np.arange(len(full) + 1),
        documents=np.array(
            [document_hash(f"{_TASK}\0{example.where}") for example in full], dtype=np.uint64
        ),
        labels=np.array([numbers[e.target] for e in full], np.uint16) if numbers else None,
    )
    return text, sum(len(" ".join(_parts(example)).encode()) for example in full)


def _parts(example: Text) -> tuple[str, ...]:
    """The two texts of a pair."""
    return example.text, str(example.target) if example.second is None else example.second


def _texts(examples: Sequence[Text]) -> pa.StringArray:
    parts = (part for example in examples for part in _parts(example))
    return pa.array(map(CLEAN_UP.normalize_str, parts), pa.string())
