"""Word similarity: do cosines of word vectors rank pairs as people do?

    love  sex  6.77 ──> cosine of the two vectors ──> Spearman's rho over the pairs of a set

Each file, a set of two words and a score in columns, is a part named after it: WordSim-353
(Finkelstein et al. 2002) and its halves of similarity and of relatedness (Agirre et al. 2009),
SimLex-999 (Hill et al. 2015, arXiv:1408.3456), RG-65 and MC-30.

Pairs with an unknown word are left out, as in gensim by default, and the share of known pairs is a
separate part: a model that knows few words gets easier pairs, so models are compared on the pairs
that both know.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import list_matching_files
from rungwise.core.storage.source_files import SourceFile
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.evaluation.suites.base import FileSuite, Rung, SuiteResult
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.section import Column, MeasuredRung, compare_rungs
from rungwise.evaluation.suites.words import KNOWN, cosines, word_vectors
from rungwise.models.trained.capabilities import WordVectors
from rungwise.tasks.formats.base import quote, read_text, split_lines

FEWEST = 3  # pairs; with two, rho is 1 or -1
_SEPARATORS = ("\t", ",", ";")  # else blanks


@dataclass(frozen=True)
class WordPair:
    """Two words and how alike people find them; `where` is the file and the line."""

    where: str
    first: str
    second: str
    score: float


class SimilaritySuite(FileSuite):
    """Files with two words per line and, in the first later column of numbers, their score, as
    published: separated by tabs, commas, semicolons or blanks, with or without a header; `#` begins
    a comment."""

    needs: ClassVar[str] = "one vector per word"
    capability: ClassVar[type] = WordVectors

    kind: Literal["similarity"] = "similarity"

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        items: list[Items] = []
        key = f"measure.{name}.path"
        sets: dict[str, str] = {}
        for file in list_matching_files(self.path, key):
            part = file.name.rpartition("/")[2].partition(".")[0]
            other = sets.setdefault(part, file.uri)
            if other != file.uri:
                raise DataError(
                    f"{key}: expected a name of its own for each set, found {part} (up to "
                    f"the first dot) of {other} and of {file.uri}; rename one"
                )
            with explain_connection_errors(file.uri, key):
                pairs = read_pairs(file, key)
            first, knows_first = word_vectors(rung, [pair.first for pair in pairs])
            second, knows_second = word_vectors(rung, [pair.second for pair in pairs])
            known = knows_first & knows_second
            names, groups = [pair.where for pair in pairs], [""] * len(pairs)
            if known.sum() >= FEWEST:
                gold = np.array([pair.score for pair in pairs])
                numbers = np.stack([gold, cosines(first, second)], axis=1)
                rated = Items(name, "correlation", names, groups, numbers, part)
                items.append(rated.select(np.flatnonzero(known).tolist()))
            items.append(Items.of_credit(name, f"{part} {KNOWN}", names, groups, known))
        return SuiteResult(items)

    def rated_pairs(self, key: str) -> dict[str, list[frozenset[str]]]:
        """The pairs of words by file name, whatever their order and case."""
        key = f"{key}.path"
        return {
            file.name: [
                frozenset((p.first.lower(), p.second.lower())) for p in read_pairs(file, key)
            ]
            for file in list_matching_files(self.path, key)
        }

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        """The correlation on the set with the most pairs, the first of equals."""
        sizes: dict[str, int] = {}
        for rung in rungs:
            for row in rung.scores(name):
                if row.metric == "correlation":
                    sizes[row.part] = max(row.count, sizes.get(row.part, 0))
        part = max(sizes, key=lambda part: sizes[part], default="")
        return [compare_rungs(rungs, name, "correlation", part)]


def read_pairs(file: SourceFile, key: str) -> list[WordPair]:
    """Read a set of pairs. Raises DataError, naming `key`, for a line that is no pair."""
    lines = [
        (number, line)
        for number, line in enumerate(split_lines(read_text(file)), start=1)
        if line.strip() and not line.startswith("#")
    ]
    separator = next((mark for mark in _SEPARATORS if lines and mark in lines[0][1]), None)
    rows = [(number, [c.strip() for c in line.split(separator)]) for number, line in lines]
    last = rows[-1][1] if rows else []
    score = next((n for n, cell in enumerate(last) if n > 1 and _is_number(cell)), 2)
    if rows and not any(map(_is_number, rows[0][1][score : score + 1])):
        rows = rows[1:]  # names of the columns
    if not rows:
        raise DataError(f"{file.uri}: expected pairs of words, found none; change {key}")
    pairs = []
    for number, cells in rows:
        if len(cells) <= score or not all(cells[:2]) or not _is_number(cells[score]):
            raise DataError(
                f"{file.uri}:{number}: expected two words and a score in column {score + 1}, found "
                f"{quote(' | '.join(cells))}; mend the line, or change {key}"
            )
        pairs.append(WordPair(f"{file.name}:{number}", cells[0], cells[1], float(cells[score])))
    return pairs


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
