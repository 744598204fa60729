"""Word similarity: do cosines of word vectors rank pairs as people do?

    love  sex  6.77 ──> cosine of the two vectors ──> Spearman's rho over the pairs of a set

Each file, a set of two words and a score in columns, is a part named after it: WordSim-353
(Finkelstein et al. 2002) and its halves of similarity and of relatedness (Agirre et al. 2009),
SimLex-999 (Hill et al. 2015, arXiv:1408.3456), RG-65 and MC-30.

Pairs with an unknown word are left out, as in gensim by default, and the share of known pairs is a
separate part: a model that knows few words gets easier pairs, so models are compared on the pairs
that both know.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal

import numpy as np

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import matching
from rungwise.evaluation.suites.base import FileSuite, Rung, SuiteResult
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.words import KNOWN, cosines, word_vectors
from rungwise.models.trained.capabilities import WordVectors
from rungwise.tasks.formats.table import ColumnsConfig, TableFormat

FEWEST = 3  # pairs; with two, rho is 1 or -1
_PAIRS = TableFormat(
    columns=ColumnsConfig(text=0, second=1, score=2),
    header=False,
    comment="#",
    extra_columns=True,
)


class SimilaritySuite(FileSuite):
    """Files with two words and a score per line, separated by tabs; `#` begins a comment."""

    needs: ClassVar[str] = "one vector per word"
    capability: ClassVar[type] = WordVectors

    kind: Literal["similarity"] = "similarity"

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        items: list[Items] = []
        key = f"measure.{name}.path"
        sets: dict[str, str] = {}
        for file in matching(self.path, key):
            part = file.name.rpartition("/")[2].partition(".")[0]
            other = sets.setdefault(part, file.uri)
            if other != file.uri:
                raise DataError(
                    f"{key}: expected a name of its own for each set, found {part} (up to "
                    f"the first dot) of {other} and of {file.uri}; rename one"
                )
            pairs = list(_PAIRS.read(file, "", Counter()))
            if not pairs:
                raise DataError(f"{file.uri}: expected pairs of words, found none; change {key}")
            first, knows_first = word_vectors(rung, [pair.text for pair in pairs])
            second, knows_second = word_vectors(rung, [str(pair.second) for pair in pairs])
            known = knows_first & knows_second
            names, groups = [pair.where for pair in pairs], [""] * len(pairs)
            if known.sum() >= FEWEST:
                gold = np.array([float(str(pair.target)) for pair in pairs])
                numbers = np.stack([gold, cosines(first, second)], axis=1)
                rated = Items(name, "correlation", names, groups, numbers, part)
                items.append(rated.select(np.flatnonzero(known).tolist()))
            items.append(Items.of_credit(name, f"{part} {KNOWN}", names, groups, known))
        return SuiteResult(items)
