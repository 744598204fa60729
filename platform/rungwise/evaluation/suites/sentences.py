"""Sentence similarity: do cosines of sentence vectors rank pairs as people do?

    a pair and a score ──> mean of the states of each sentence ──> cosine ──> correlation

A sentence vector is the mean over its tokens in each layer, or over its words in a table, or the
model's own:

    layer 0, layer 1 ...    rungs with layers; 0 are the embeddings
    words                   rungs with a table of static word vectors
    own vector              rungs that pool or infer in their own way
    random words ...        what any of them must beat (floors.py)

Nothing is trained on the scores. Reads the STS benchmark (Cer et al. 2017, arXiv:1708.00055), STS
2012 to 2016, SICK, and any table of pairs with scores. Of several files, such as the sets of a
year, Pearson's r is also a mean over files, plain and weighted by their pairs.
"""

from collections import Counter
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import list_matching_files
from rungwise.evaluation.suites.base import FileSuite, Rung, SuiteResult, read_texts
from rungwise.evaluation.suites.floors import floor_vectors, has_sentence_vectors, vectors_by_part
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.words import cosines
from rungwise.tasks.formats.presets import SickFormat, StsFormat
from rungwise.tasks.formats.table import TableFormat
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Text


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
        if not KINDS[value.task_kind].numeric:
            raise ValueError("expected pairs with scores, found a format with labels")
        return value

    def serves(self, rung: Rung) -> bool:
        return has_sentence_vectors(rung)

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        counts: Counter[str] = Counter()
        key = f"measure.{name}.path"
        pairs = self._pairs(key, counts)
        for reason, number in counts.items():
            rung.report.note(f"{name}: {reason.replace('_', ' ')}: {number:,}")
        texts = [text for pair in pairs for text in (pair.text, str(pair.second))]
        gold = np.array([float(str(pair.target)) for pair in pairs])
        names, several = (
            [pair.where for pair in pairs],
            len(list_matching_files(self.path, key)) > 1,
        )
        sets = [place.rpartition(":")[0] if several else "" for place in names]
        metrics = ("correlation", "pearson", *(["weighted_pearson"] if several else []))
        items = []
        for part, vectors in (vectors_by_part(rung, texts) | floor_vectors(rung, texts)).items():
            numbers = np.stack([gold, cosines(vectors[0::2], vectors[1::2])], axis=1)
            items += [Items(name, metric, names, sets, numbers, part) for metric in metrics]
        return SuiteResult(items)

    def _pairs(self, key: str, counts: Counter[str]) -> list[Text]:
        pairs = read_texts(self.path, self.format, "test", key, counts)
        if not pairs or any(pair.second is None or pair.target is None for pair in pairs):
            raise DataError(
                f"{key}: expected pairs of sentences with scores, found {len(pairs)} rows, not all "
                f"of them such pairs; change {key}, or which columns the format names"
            )
        return pairs
