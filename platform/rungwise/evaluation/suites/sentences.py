"""Sentence similarity: do cosines of sentence vectors rank pairs as people do?

    a pair and a score ──> mean of the states of each sentence ──> cosine ──> Spearman's rho

A sentence vector is the mean over its tokens in each layer, or over its words in a table, or the
model's own:

    layer 0, layer 1 ...    rungs with layers; 0 are the embeddings
    words                   rungs with a table of static word vectors
    own vector              rungs that pool or infer in their own way

Nothing is trained on the scores. Reads the STS benchmark (Cer et al. 2017, arXiv:1708.00055), SICK,
and any table of pairs with scores.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import matching
from rungwise.core.storage.source_files import place_by_name
from rungwise.core.storage.store_errors import reached
from rungwise.evaluation.suites.base import FileSuite, Rung, SuiteResult
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import Sentence, reads_words, word_reader
from rungwise.evaluation.suites.words import cosines
from rungwise.models.trained.capabilities import SentenceVectors
from rungwise.models.trained.contexts import StaticWords
from rungwise.tasks.formats.presets import SickFormat, StsFormat
from rungwise.tasks.formats.table import TableFormat
from rungwise.tasks.kinds.examples import Text

WORDS, OWN = "words", "own vector"  # the parts of the word table, and of a model's own way


class SentencesSuite(FileSuite):
    """Pairs of sentences with similarity scores."""

    needs: ClassVar[str] = "vectors of words or sentences"

    kind: Literal["sentences"] = "sentences"
    # a task format that has scores
    format: Annotated[TableFormat | SickFormat | StsFormat, Field(discriminator="kind")]

    @field_validator("format")
    @classmethod
    def _has_scores(
        cls, value: TableFormat | SickFormat | StsFormat
    ) -> TableFormat | SickFormat | StsFormat:
        if value.task_kind != "regression":
            raise ValueError("expected pairs with scores, found a format with labels")
        return value

    def serves(self, rung: Rung) -> bool:
        return reads_words(rung) or isinstance(rung.model, SentenceVectors)

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        counts: Counter[str] = Counter()
        pairs = self._pairs(f"measure.{name}.path", counts)
        for reason, number in counts.items():
            rung.report.note(f"{name}: {reason.replace('_', ' ')}: {number:,}")
        texts = [text for pair in pairs for text in (pair.text, str(pair.second))]
        gold = np.array([float(str(pair.target)) for pair in pairs])
        files = {file.uri: file.name for file in matching(self.path, f"measure.{name}.path")}
        names = [place_by_name(pair.where, files) for pair in pairs]
        groups = [""] * len(pairs)
        items = []
        for part, vectors in _vectors(rung, texts).items():
            numbers = np.stack([gold, cosines(vectors[0::2], vectors[1::2])], axis=1)
            items.append(Items(name, "correlation", names, groups, numbers, part))
        return SuiteResult(items)

    def _pairs(self, key: str, counts: Counter[str]) -> list[Text]:
        pairs: list[Text] = []
        for file in matching(self.path, key):
            with reached(file.uri, key):
                rows = self.format.read(file, "test", counts)
                try:
                    pairs += [row for row in rows if isinstance(row, Text)]
                except DataError as error:  # in the words of a task
                    form = key.removesuffix("path") + "format"
                    raise DataError(str(error).replace("data.format", form)) from None
        if not pairs or any(pair.second is None or pair.target is None for pair in pairs):
            raise DataError(
                f"{key}: expected pairs of sentences with scores, found {len(pairs)} rows, not all "
                f"of them such pairs; change {key}, or which columns the format names"
            )
        return pairs


def _vectors(rung: Rung, texts: list[str]) -> dict[str, NDArray[np.float64]]:
    """The vectors (N, E) of sentences by part."""
    vectors: dict[str, NDArray[np.float32]] = {}
    if reads_words(rung):
        reader, whole = word_reader(rung), [Sentence(text, ((0, len(text)),)) for text in texts]
        if not isinstance(reader.source, StaticWords):
            layers = reader.layers(whole).layers
            vectors = {f"layer {number}": layer for number, layer in enumerate(layers)}
        if reader.table is not None:
            static = replace(reader, source=StaticWords(reader.table))
            [vectors[WORDS]] = static.layers(whole).layers
    if isinstance(rung.model, SentenceVectors):
        vectors[OWN] = rung.model.sentence_vectors(rung.encode(texts))
    return {part: rows.astype(np.float64) for part, rows in vectors.items()}
