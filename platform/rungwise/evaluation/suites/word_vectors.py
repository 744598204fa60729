"""Vectors of single words: do their cosines rank pairs as people do, and complete analogies? Items
with unknown words are left out, and the share of the others is the part `known`.

N words, Q questions, V vocabulary, D size of a vector
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError, explain_connection_errors
from rungwise.core.storage.source_files import Paths, SourceFile, list_matching_files
from rungwise.evaluation.suites.base import (
    Column,
    FileSuite,
    MeasuredRung,
    Rung,
    compare_rungs,
    read_lines,
)
from rungwise.evaluation.suites.items import Items
from rungwise.models.trained.capabilities import WordVectors
from rungwise.tasks.formats.base import quote, read_text, split_lines
from rungwise.tasks.kinds.examples import Text
from rungwise.tokenizer import ids_after_blank

KNOWN = "known"  # the part with the share of known items


def word_pieces(rung: Rung, words: Sequence[str]) -> list[list[int]]:
    """The ids of each word with or without a space before it, whichever gives fewer pieces."""
    alone, behind = rung.encode(words), ids_after_blank(rung.splitter, words)
    return [min(second, first, key=len) for first, second in zip(alone, behind, strict=True)]


def word_vectors(rung: Rung, words: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The vectors (N, D) of words, means over pieces that are learnt, and which (N,) have any such
    piece and are known; unknown ones have zeros."""
    pieces = word_pieces(rung, words)
    flat = [piece for each in pieces for piece in each]
    vectors = rung.model.vectors(flat).astype(np.float64)
    known = vectors.any(axis=1) & ~np.isin(flat, list(rung.special.ids))
    owner = np.repeat(np.arange(len(words)), [len(each) for each in pieces])[known]
    sums = np.zeros((len(words), vectors.shape[1]))
    np.add.at(sums, owner, vectors[known])
    counts = np.bincount(owner, minlength=len(words))
    return sums / np.maximum(counts, 1)[:, None], counts > 0


def cosines(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row-wise cosines (N,) of two (N, D) arrays; 0 for zero vectors."""
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.where(sizes == 0, 1.0, sizes)


FEWEST = 3  # pairs; with two, rho is 1 or -1
_SEPARATORS = ("\t", ",", ";")  # else blanks


class _WordsSuite(FileSuite):
    needs: ClassVar[str] = "one vector per word"
    capability: ClassVar[type] = WordVectors


class SimilaritySuite(_WordsSuite):
    """Files with two words per line and, in the first later column of numbers, their score, as
    published: separated by tabs, commas, semicolons or blanks, with or without a header; `#` begins
    a comment."""

    kind: Literal["similarity"] = "similarity"

    def measure(self, rung: Rung, name: str) -> list[Items]:
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
            first, knows_first = word_vectors(rung, [pair.text for pair in pairs])
            second, knows_second = word_vectors(rung, [str(pair.second) for pair in pairs])
            known = knows_first & knows_second
            names, groups = [pair.where for pair in pairs], [""] * len(pairs)
            if known.sum() >= FEWEST:
                gold = np.array([pair.number for pair in pairs])
                numbers = np.stack([gold, cosines(first, second)], axis=1)
                rated = Items(name, "correlation", names, groups, numbers, part)
                items.append(rated.select(np.flatnonzero(known).tolist()))
            items.append(Items.of_credit(name, f"{part} {KNOWN}", names, groups, known))
        return items

    def rated_pairs(self, key: str) -> dict[str, list[frozenset[str]]]:
        """The pairs of words by file name, whatever their order and case."""
        files = list_matching_files(self.path, f"{key}.path")
        pairs = {file.name: read_pairs(file, f"{key}.path") for file in files}
        return {
            name: [frozenset(map(str.lower, each.parts)) for each in own]
            for name, own in pairs.items()
        }

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        """The correlation on the set with the most pairs, the first of equals."""
        rows = [row for rung in rungs for row in rung.scores(name) if row.metric == "correlation"]
        part = max(rows, key=lambda row: row.count).part if rows else ""
        return [compare_rungs(rungs, name, "correlation", part)]


def read_pairs(file: SourceFile, key: str) -> list[Text]:
    """Read a set of pairs of words, each with how alike people find them. Raises DataError, naming
    `key`, for a line that is no pair."""
    lines = enumerate(split_lines(read_text(file)), start=1)
    lines = [each for each in lines if each[1].strip() and not each[1].startswith("#")]
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
        pairs.append(Text(f"{file.name}:{number}", cells[0], cells[1], float(cells[score])))
    return pairs


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


_CELLS = 1 << 24  # cosines held at a time


@dataclass(frozen=True)
class Analogy:
    """Four words; `where` is the file and the line."""

    where: str
    section: str
    words: tuple[str, str, str, str]


class AnalogiesSuite(_WordsSuite):
    """Files of analogy questions: a is to b as c is to which word? By 3CosAdd (Mikolov et al. 2013,
    arXiv:1301.3781) on unit vectors, among words that are a single piece."""

    kind: Literal["analogies"] = "analogies"

    def measure(self, rung: Rung, name: str) -> list[Items]:
        questions = read_questions(self.path, f"measure.{name}.path")
        ids = _word_ids(rung, sorted({word for each in questions for word in each.words}))
        known = np.array([all(word in ids for word in each.words) for each in questions])
        names, groups = [each.where for each in questions], [each.section for each in questions]
        shares = Items.of_credit(name, KNOWN, names, groups, known)
        if not known.any():
            return [shares]
        places = np.flatnonzero(known).tolist()
        ids_Q4 = np.array([[ids[word] for word in questions[place].words] for place in places])
        # Unit vectors; zeros for special tokens and tokens without a vector.
        vectors_VD = rung.model.vectors(range(rung.model.vocab_size))
        lengths_V1 = np.linalg.norm(vectors_VD, axis=1, keepdims=True)
        directions_VD = vectors_VD / np.where(lengths_V1 == 0, 1, lengths_V1)
        directions_VD[list(rung.special.ids)] = 0
        right = np.zeros(len(questions))
        right[places] = answer_analogies(directions_VD, ids_Q4[:, :3]) == ids_Q4[:, 3]
        items = Items.of_credit(name, "", names, groups, right).select(places)
        return [items, shares]


def answer_analogies(
    directions_VD: NDArray[np.floating], ids_Q3: NDArray[np.integer]
) -> NDArray[np.intp]:
    """The answers (Q,) to questions of three ids, by unit vectors; rows of zeros are excluded."""
    excluded_V = ~directions_VD.any(axis=1)
    answers = []
    for part_Q3 in np.array_split(ids_Q3, -(-len(ids_Q3) * len(directions_VD) // _CELLS)):
        a_QD, b_QD, c_QD = directions_VD[part_Q3.T]
        cosines_QV = (b_QD - a_QD + c_QD) @ directions_VD.T
        cosines_QV[:, excluded_V] = -np.inf
        np.put_along_axis(cosines_QV, part_Q3, -np.inf, axis=1)
        answers.append(cosines_QV.argmax(axis=1))
    return np.concatenate(answers)


def read_questions(paths: Paths, key: str) -> list[Analogy]:
    """Read all files; `key` names the paths in errors. Raises DataError for a malformed line."""
    questions, section = [], ""
    for file, number, line in read_lines(paths, key):
        if number == 1:
            section = ""
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        match line.split():
            case [a, b, c, d] if section:
                questions.append(Analogy(f"{file.name}:{number}", section, (a, b, c, d)))
            case []:
                pass
            case words:
                raise DataError(
                    f"{file.uri}:{number}: expected four words below a line `: section`, found "
                    f"{len(words)} {'in' if section else 'above'} it; mend the file, or change "
                    f"{key}"
                )
    if not questions:
        raise DataError(f"{key}: expected questions, found none; change {key}")
    return questions


def _word_ids(rung: Rung, words: Sequence[str]) -> dict[str, int]:
    """The id of each word that is a single piece with a vector."""
    single = {
        word: pieces[0]
        for word, pieces in zip(words, word_pieces(rung, words), strict=True)
        if len(pieces) == 1 and pieces[0] not in rung.special.ids
    }
    has_vector = rung.model.vectors(list(single.values())).any(axis=1) if single else []
    return dict(itertools.compress(single.items(), has_vector))
