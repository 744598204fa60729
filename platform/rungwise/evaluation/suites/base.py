"""Suites: evaluations of any rung that offers the capability they need.

A suite is a config with `measure(rung)`, in a file of its own and listed in the union of config.py.
It needs one capability of the model (models/trained/capabilities.py); rungs without it are
skipped, and the page says so. It also brings what a ladder's page shows of it: columns in the table
of all scores, and a block in a section.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Reporter
from rungwise.core.storage import outside
from rungwise.core.storage.outside import Paths
from rungwise.core.storage.source_files import SourceFile, place_by_name
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.core.tokens import SpecialIds
from rungwise.corpus.cleaning.overlap import mark_repeats
from rungwise.corpus.document import Document, read_documents
from rungwise.corpus.summary import CorpusSummary, read_split
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.section import Column, MeasuredRung, SuiteBlock, tabulate_scores
from rungwise.models.trained.capabilities import Encoder
from rungwise.tasks.formats.base import FormatConfig, read_text, split_lines
from rungwise.tasks.kinds.examples import Text
from rungwise.tokenizer import CLEAN_UP, Encoded, load_reader, open_encoder
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.pretrained import load_encoder, load_model
from rungwise.training.summary import PretrainSummary


@dataclass(frozen=True)
class Rung:
    """A trained model with its text, as seen by suites."""

    pretrain: Artifact
    tokens: Artifact
    tokenizer: Artifact
    corpus: Artifact
    report: Reporter
    is_trained: bool = True  # else with the random weights that training could begin with
    only_new: bool = False  # read no held-out text that stands in training

    @cached_property
    def model(self) -> Any:
        """The model on the CPU; test for its capabilities with `isinstance`."""
        return load_model(self.pretrain, trained=self.is_trained)

    @cached_property
    def encoder(self) -> Encoder | None:
        """The pretrained encoder, which gives states of every layer; None if there is none."""
        return load_encoder(self.pretrain, self.is_trained)

    @cached_property
    def untrained(self) -> "Rung | None":
        """The same model before training; None for one that is not fitted by gradient."""
        return None if self.summary.gradient is None else replace(self, is_trained=False)

    @cached_property
    def summary(self) -> PretrainSummary:
        return PretrainSummary.of(self.pretrain)

    @cached_property
    def held_out(self) -> list[tuple[str, Document]]:
        """The documents of the held-out split, each with its source."""
        rows = [row for row in CorpusSummary.of(self.corpus).files if row.split == "validation"]
        documents = [
            (row.source, document)
            for row in rows
            for document in read_documents(self.corpus.folder, row.file)
        ]
        return _keep_new(documents, self.corpus) if self.only_new else documents

    @property
    def special(self) -> SpecialIds:
        return TokensSummary.of(self.tokens).special

    @cached_property
    def splitter(self) -> Any:
        """The tokenizer of the `tokenizers` library, for token offsets and text; it cleans texts up
        as the corpus was."""
        return load_reader(self.tokenizer.folder)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        encoded = self.encode_array(texts)
        return _split_by_text(encoded.ids.tolist(), encoded)

    def encode_words(self, texts: Sequence[str]) -> tuple[list[list[int]], list[list[bool]]]:
        """The ids of each text, and for each id whether a word of the tokenizer begins there."""
        encoded = self.encode_array(texts, words=True)
        assert encoded.word_starts is not None
        ids, starts = encoded.ids.tolist(), encoded.word_starts.tolist()
        return _split_by_text(ids, encoded), _split_by_text(starts, encoded)

    def encode_array(self, texts: Sequence[str], words: bool = False) -> Encoded:
        """The ids of all texts in one array, without special tokens."""
        clean = pa.array(map(CLEAN_UP.normalize_str, texts), pa.string())
        return open_encoder(self.tokenizer.folder).encode(clean, words=words)


def _keep_new(
    documents: Sequence[tuple[str, Document]], corpus: Artifact
) -> list[tuple[str, Document]]:
    """Leave out the sentences that stand in training, and documents of which none is left."""
    sentences = [document.sentences for _, document in documents]
    starts = [document.paragraph_starts for _, document in documents]
    table = pa.table({"sentences": sentences, "paragraph_starts": starts})
    training = (document.sentences for document in read_split(corpus, "train"))
    stays = np.split(~mark_repeats(table, training), np.cumsum([*map(len, sentences)])[:-1])
    return [
        (source, document.select(own.tolist()))
        for (source, document), own in zip(documents, stays, strict=True)
        if own.any()
    ]


def _split_by_text(values: list[Any], encoded: Encoded) -> list[list[Any]]:
    lengths = encoded.lengths
    return [
        values[end - length : end]
        for end, length in zip(lengths.cumsum().tolist(), lengths.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class SuiteResult:
    """Items, and data of named JSON files for the page, such as a map or lists of neighbours.
    `transductive` counts the texts that a model with vectors of documents has learnt."""

    items: list[Items]
    files: dict[str, Any] = field(default_factory=dict)
    transductive: int = 0


class Suite(Config):
    """The keys that suites share; each subclass has a literal `kind`.

    `needs` is the `capability` of the model in words, for the page; suites that accept other rungs
    too override `serves`. `reads` are the keys that name files. Digests of the files stand for
    these keys where it is decided whether to measure again.
    """

    needs: ClassVar[str]
    capability: ClassVar[type]
    reads: ClassVar[tuple[str, ...]] = ()
    section: ClassVar[str] = "Words, sentences, speed"  # of a ladder's page

    kind: Any

    @property
    def on_held_out(self) -> bool:
        """Whether its items are made of the held-out text."""
        return False

    def serves(self, rung: Rung) -> bool:
        """Whether the rung has what the suite needs."""
        return isinstance(rung.model, self.capability)

    @abstractmethod
    def measure(self, rung: Rung, name: str) -> SuiteResult:
        """Measure the rung; `name` is the suite's key in the recipe. Raises DataError for files in
        the wrong format."""

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        """The scores in the table of a ladder, of the rungs that answered the suite."""
        return []

    def show(self, name: str, rungs: Sequence[MeasuredRung]) -> SuiteBlock | None:
        """The suite's block in its `section`; None if its columns say all."""
        return SuiteBlock(name, tables=[tabulate_scores(rungs, name)])

    def rated_pairs(self, key: str) -> dict[str, list[frozenset[str]]]:
        """The pairs of words that it asks to rate, by file; `key` is the suite's key."""
        return {}

    def outside(self, key: str) -> dict[str, Any]:
        """Digests of the files it reads; `key` is the suite's key in the config."""
        return {
            name: outside.digest(paths, f"{key}.{name}")
            for name in self.reads
            if (paths := getattr(self, name)) is not None
        }


class FileSuite(Suite):
    """A suite that reads published files."""

    reads: ClassVar[tuple[str, ...]] = ("path",)

    path: Paths  # files, folders or globs with the data


def read_texts(
    paths: Paths, form: FormatConfig, split: str, key: str, counts: Counter[str]
) -> list[Text]:
    """Read the texts of all files in a format of tasks, each named by file and line; `key` names
    the paths in errors, beside the format. Raises DataError for data that cannot be used."""
    texts: list[Text] = []
    names: dict[str, str] = {}
    for file in outside.list_matching_files(paths, key):
        names[file.uri] = file.name
        with explain_connection_errors(file.uri, key):
            try:
                rows = form.read(file, split, counts)
                texts += [row for row in rows if isinstance(row, Text)]
            except DataError as error:  # in the words of a task
                block = f"{key.rpartition('.')[0]}.format"
                raise DataError(str(error).replace("data.format", block)) from None
    return [replace(text, where=place_by_name(text.where, names)) for text in texts]


def read_lines(
    paths: Paths, key: str, endings: tuple[str, ...] = ("",)
) -> Iterator[tuple[SourceFile, int, str]]:
    """Yield (file, number from 1, line) for the lines of all files whose names end so; `key` names
    the paths in errors."""
    for file in outside.list_matching_files(paths, key):
        if not file.name.endswith(endings):
            continue
        with explain_connection_errors(file.uri, key):
            lines = split_lines(read_text(file))
        for number, line in enumerate(lines, start=1):
            yield file, number, line
