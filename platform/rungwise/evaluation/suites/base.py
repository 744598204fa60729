"""Suites: evaluations of any rung that offers the capability they need."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
        """The pretrained encoder; None if there is none."""
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
        documents = [
            (row.source, document)
            for row in CorpusSummary.of(self.corpus).files
            if row.split == "validation"
            for document in read_documents(self.corpus.folder, row.file)
        ]
        return _keep_new(documents, self.corpus) if self.only_new else documents

    @property
    def special(self) -> SpecialIds:
        return TokensSummary.of(self.tokens).special

    @cached_property
    def splitter(self) -> Any:
        """The tokenizer of the `tokenizers` library, which cleans texts up as the corpus was."""
        return load_reader(self.tokenizer.folder)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        encoded = self.encode_array(texts)
        return _split_by_text(encoded.ids, encoded)

    def encode_words(self, texts: Sequence[str]) -> tuple[list[list[int]], list[list[bool]]]:
        """The ids of each text, and for each id whether a word of the tokenizer begins there."""
        encoded = self.encode_array(texts, words=True)
        assert encoded.word_starts is not None
        return _split_by_text(encoded.ids, encoded), _split_by_text(encoded.word_starts, encoded)

    def encode_array(self, texts: Sequence[str], words: bool = False) -> Encoded:
        """The ids of all texts in one array, without special tokens."""
        clean = pa.array(map(CLEAN_UP.normalize_str, texts), pa.string())
        return open_encoder(self.tokenizer.folder).encode(clean, words=words)


def _keep_new(
    documents: Sequence[tuple[str, Document]], corpus: Artifact
) -> list[tuple[str, Document]]:
    """Leave out sentences that stand in training, and documents of which none is left."""
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


def _split_by_text(values: NDArray[Any], encoded: Encoded) -> list[list[Any]]:
    parts = np.split(values, encoded.lengths.cumsum())[:-1]
    return [part.tolist() for part in parts]


@dataclass(frozen=True)
class SuiteResult:
    """Items, and data of JSON files for the page by name. `transductive` counts the texts that a
    model with vectors of documents has learnt."""

    items: list[Items]
    files: dict[str, Any] = field(default_factory=dict)
    transductive: int = 0


class Suite(Config):
    """The keys that suites share. `needs` is the `capability` of the model in words; `reads` are
    keys that name files, which digests stand for where it is decided whether to measure again."""

    needs: ClassVar[str]
    capability: ClassVar[type]
    reads: ClassVar[tuple[str, ...]] = ()
    of_held_out: ClassVar[bool] = False  # unless it has a `path`
    section: ClassVar[str] = "Words, sentences, speed"  # of a ladder's page

    kind: Any

    @property
    def on_held_out(self) -> bool:
        """Whether its items are made of the held-out text."""
        return self.of_held_out and getattr(self, "path", None) is None

    def serves(self, rung: Rung) -> bool:
        """Whether the rung has what the suite needs."""
        return isinstance(rung.model, self.capability)

    @abstractmethod
    def measure(self, rung: Rung, name: str) -> SuiteResult:
        """Measure the rung; `name` is the suite's key. Raises DataError for unreadable files."""

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        """The scores in the table of a ladder."""
        return []

    def show(self, name: str, rungs: Sequence[MeasuredRung]) -> SuiteBlock | None:
        """The suite's block in its `section`; None if its columns say all."""
        return SuiteBlock(name, tables=[tabulate_scores(rungs, name)])

    def rated_pairs(self, key: str) -> dict[str, list[frozenset[str]]]:
        """The pairs of words that it asks to rate, by file."""
        return {}

    def outside(self, key: str) -> dict[str, Any]:
        """Digests of the files it reads."""
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
    """Read the texts of all files in a format of tasks, each named by file and line. Raises
    DataError, naming `key`, for data that cannot be used."""
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
    """Yield (file, number from 1, line) for the lines of all files whose names end so."""
    for file in outside.list_matching_files(paths, key):
        if not file.name.endswith(endings):
            continue
        with explain_connection_errors(file.uri, key):
            lines = split_lines(read_text(file))
        for number, line in enumerate(lines, start=1):
            yield file, number, line
