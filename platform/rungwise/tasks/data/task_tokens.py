"""The pairs of texts of a task as tokens, for pretraining that learns from them: pairs with labels,
as InferSent does (Conneau et al. 2017, arXiv:1705.02364), or texts and those to write for them, as
CoVe does (McCann et al. 2017, arXiv:1708.00107).

A pair is a document of two sentences, with the number of its label if it has one. The tokenizer of
the recipe encodes each text by itself. Training pairs make the training split and validation pairs
the validation split; test pairs are not read. A pair is left out and counted if one of its texts
has no tokens.

A task fits in memory, so this process builds the files without Ray Data.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rungwise.core.errors import DataError
from rungwise.core.plural import counted
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.tasks.kinds.examples import TaskInfo, TaskSummary, Text, read_examples
from rungwise.tasks.stage import TaskTokensConfig
from rungwise.tokenizer import (
    CLEAN_UP,
    TextEncoder,
    TokenizerSummary,
    cached_encoder,
    choose_encoder,
    load_tokenizer,
)
from rungwise.tokens.building import summarise_files
from rungwise.tokens.summary import TokensSummary
from rungwise.tokens.text import TokenisedText, document_hash, write_tokens

_SPLITS = ("train", "validation")
_SOURCE = "task"
_PAIRS_PER_FILE = 1 << 16


def encode_pairs(
    config: TaskTokensConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> TokensSummary:
    """Encode the pairs of the input `task` with the input `tokenizer`.

    Raises DataError if the task is neither a classification of pairs nor one of generation, if its
    training pairs have only one label, or if a label is not among those of the task.
    """
    info = TaskSummary.of(inputs["task"]).info
    writes = info.kind == "generation"
    if not writes and (info.kind != "classification" or not info.pair):
        raise DataError(
            "pairs need a task with one label for a pair of texts, or with a text to write for "
            f"another, found {info.goal}; name another one in pretraining_task"
        )
    splits = {split: read_examples(inputs["task"], split) for split in _SPLITS}
    labels = {example.target for example in splits["train"]}
    if not writes and len(labels) < 2:
        raise DataError(
            "labelled pairs need at least two labels to learn from, but the training pairs have "
            f"{', '.join(map(repr, labels)) or 'none'}; name another task in pretraining_task"
        )
    folder, tokenizer = inputs["tokenizer"].folder, TokenizerSummary.of(inputs["tokenizer"])
    sample = _texts(splits["train"][:_PAIRS_PER_FILE])
    choice = choose_encoder(load_tokenizer(folder), context.compute.tokenizer_backend, sample)
    if choice.notice is not None:
        context.report.note(choice.notice)
    encoder = cached_encoder(folder, choice)
    rows, held_out = [], np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for split, examples in splits.items():
        for number, first in enumerate(range(0, len(examples), _PAIRS_PER_FILE)):
            part = examples[first : first + _PAIRS_PER_FILE]
            text, text_bytes = encode_examples(part, info, encoder)
            file = f"{split}-{number:05d}.arrow"
            with output.staged(file) as path:
                write_tokens(text, path)
                sha256 = file_digest(path)
            if split == "validation":
                held_out += np.bincount(text.ids, minlength=len(held_out))
            rows.append(
                {
                    "file": file,
                    "split": split,
                    "source": _SOURCE,
                    "sha256": sha256,
                    "documents": len(text.documents),
                    "sentences": len(text.starts) - 1,
                    "tokens": len(text.ids),
                    "text_bytes": text_bytes,
                }
            )
    summary = summarise_files(rows, tokenizer, held_out)
    pairs = summary.documents.total
    empty = sum(map(len, splits.values())) - pairs
    labelled = "" if writes else f"{len(info.labels)} labels  "
    headline = f"{counted(pairs, 'pair')}  {labelled}{summary.headline}"
    if empty:
        headline += f"  {counted(empty, 'pair')} left out for a text without tokens"
    return summary.model_copy(update={"labels": info.labels, "headline": headline})


def encode_examples(
    examples: Sequence[Text], info: TaskInfo, encoder: TextEncoder
) -> tuple[TokenisedText, int]:
    """Encode pairs, without those of which a text has no tokens, and count their bytes of UTF-8.
    Raises DataError if a label is not among those of the task."""
    numbers: dict[object, int] = {label: number for number, label in enumerate(info.labels)}
    for example in examples:
        if numbers and example.target not in numbers:
            raise DataError(
                f"{example.where}: the label {example.target!r} is not among the training labels; "
                "set pretraining_task.unseen_labels to drop"
            )
    encoded = encoder.encode(_texts(examples))
    keep = encoded.lengths.reshape(-1, 2).min(axis=1) > 0
    lengths = encoded.lengths[np.repeat(keep, 2)]
    full = [example for example, filled in zip(examples, keep.tolist(), strict=True) if filled]
    text = TokenisedText(
        ids=encoded.ids[np.repeat(np.repeat(keep, 2), encoded.lengths)],
        starts=np.append(0, np.cumsum(lengths)).astype(np.int64),
        first_sentence=2 * np.arange(len(full) + 1),
        documents=np.array(
            [document_hash(f"{_SOURCE}\0{example.where}") for example in full], dtype=np.uint64
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
