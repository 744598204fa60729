"""Analogies: a is to b as c is to ... ?

    Athens Greece Oslo Norway    the word nearest to  b - a + c,  none of the three: is it Norway?

3CosAdd (Mikolov et al. 2013, arXiv:1301.3781, in the form of Levy & Goldberg 2014) on unit vectors,
over the whole vocabulary except special tokens. As in word2vec and gensim, questions with a word
outside the vocabulary are left out; the part `known` is the share of the others. In a vocabulary of
pieces, a word is known if it is a single piece.

Files have lines of four words below `: section` lines: questions-words.txt of word2vec, and CA8 for
Chinese (Li et al. 2018, arXiv:1805.06504). Items are named by line and grouped by section.

Q questions, V vocabulary, D size of a vector
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import Paths
from rungwise.evaluation.suites.base import FileSuite, Rung, SuiteResult, read_lines
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.words import KNOWN, word_pieces
from rungwise.models.trained.capabilities import WordVectors

_CELLS = 1 << 24  # cosines held at a time


@dataclass(frozen=True)
class Analogy:
    """Four words; `where` is the file and the line."""

    where: str
    section: str
    words: tuple[str, str, str, str]


class AnalogiesSuite(FileSuite):
    """Files of analogy questions: a is to b as c is to which word?"""

    needs: ClassVar[str] = "one vector per word"
    capability: ClassVar[type] = WordVectors

    kind: Literal["analogies"] = "analogies"

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        questions = read_questions(self.path, f"measure.{name}.path")
        ids = _word_ids(rung, sorted({word for each in questions for word in each.words}))
        known = np.array([all(word in ids for word in each.words) for each in questions])
        names, groups = [each.where for each in questions], [each.section for each in questions]
        shares = Items.of_credit(name, KNOWN, names, groups, known)
        if not known.any():
            return SuiteResult([shares])
        places = np.flatnonzero(known).tolist()
        ids_Q4 = np.array([[ids[word] for word in questions[place].words] for place in places])
        right = np.zeros(len(questions))
        right[places] = answer_analogies(_directions(rung), ids_Q4[:, :3]) == ids_Q4[:, 3]
        items = Items.of_credit(name, "", names, groups, right).select(places)
        return SuiteResult([items, shares])


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
    return {item[0]: item[1] for item, has in zip(single.items(), has_vector, strict=True) if has}


def _directions(rung: Rung) -> NDArray[np.float32]:
    """Unit vectors (V, D); zeros for special tokens and tokens without a vector."""
    vectors = rung.model.vectors(range(rung.model.vocab_size))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = vectors / np.where(lengths == 0, 1, lengths)
    directions[list(rung.special.ids)] = 0
    return directions
