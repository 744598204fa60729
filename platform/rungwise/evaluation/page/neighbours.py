"""Nearest neighbours of a word by cosine, among the whole words of a vocabulary.

    word ──> its pieces ──> the mean of their vectors ──> cosine with every whole word ──> nearest

Whole words are tokens of letters only, at least 3 in ASCII (spelling.py).
N words, D size of a vector
"""

import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.page.spelling import Spelling
from rungwise.models.trained.capabilities import WordVectors
from rungwise.tokenizer import ids_after_blank, special_ids
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile

_POSITION = 31  # stream of the generator
_POSITIONS = 4096  # drawn, enough to meet as many words as a page shows


@dataclass(frozen=True)
class Neighbour:
    """A word and its cosine with the query."""

    word: str
    cosine: float


@dataclass(frozen=True)
class Neighbours:
    """A word with its neighbours, nearest first."""

    word: str
    nearest: tuple[Neighbour, ...]


class Neighbourhood:
    """The whole words of a vocabulary that have a vector."""

    def __init__(self, model: WordVectors, tokenizer: Tokenizer) -> None:
        spelling = Spelling.of(tokenizer)
        words = [token for token in range(model.vocab_size) if spelling.is_word(token)]
        vectors_ND = model.vectors(words)
        length_N = np.linalg.norm(vectors_ND, axis=1)
        has_vector = np.flatnonzero(length_N)
        self._model, self._tokenizer = model, tokenizer
        self._has_blank = spelling.mark == "Ġ"  # written into a word
        self._unit_ND = vectors_ND[has_vector] / length_N[has_vector, None]
        self.ids = [words[place] for place in has_vector]
        self.words = [tokenizer.decode([token]).strip() for token in self.ids]

    def nearest(self, word: str, count: int) -> Neighbours:
        """The `count` nearest words, excluding itself; raises as `vector`."""
        vector_D = self.vector(word)
        cosine_N = self._unit_ND @ (vector_D / np.linalg.norm(vector_D))
        spelling = self._tokenizer.decode(self._ids(word)).strip()
        order = np.argsort(-cosine_N, kind="stable")[: count + 1]
        neighbours = (Neighbour(self.words[place], float(cosine_N[place])) for place in order)
        return Neighbours(word, tuple(each for each in neighbours if each.word != spelling)[:count])

    def pieces(self, word: str) -> list[str]:
        """The tokens of a word, as the vocabulary spells them."""
        return [self._tokenizer.id_to_token(token) or "" for token in self._ids(word)]

    def vector(self, word: str) -> NDArray[np.float32]:
        """The mean vector (D,) of a word's pieces.

        Raises DataError, naming words spelled alike, if there is none.
        """
        ids = self._ids(word)
        vector_D = self._model.vectors(ids).mean(axis=0) if ids else np.zeros(1, np.float32)
        if special_ids(self._tokenizer).unk in ids or not vector_D.any():
            alike = difflib.get_close_matches(word, self.words, n=5)
            raise DataError(
                f"expected a word that the vocabulary has and that was met often enough to be "
                f"learnt, found {word!r}; spelled alike: {', '.join(alike) or 'none'}"
            )
        return vector_D

    def _ids(self, word: str) -> list[int]:
        if self._has_blank:
            [ids] = ids_after_blank(self._tokenizer, [word])
            return ids
        return self._tokenizer.encode(word, add_special_tokens=False).ids


def neighbours_of_text(
    model: WordVectors, tokenizer: Tokenizer, tokens: Artifact, words: int, count: int, seed: int
) -> list[Neighbours]:
    """Neighbours of the first `words` distinct words drawn from held-out text by the seed."""
    neighbourhood = Neighbourhood(model, tokenizer)
    words_by_id = dict(zip(neighbourhood.ids, neighbourhood.words, strict=True))
    file = TokensSummary.of(tokens).split_files("validation")[0].file
    ids = TokensFile(tokens.folder.local(file)).text().ids
    places = bits(seed, _POSITION, np.arange(_POSITIONS)) % np.uint64(len(ids))
    tokens_there = ids[places].tolist()
    distinct = dict.fromkeys(words_by_id[t] for t in tokens_there if t in words_by_id)
    return [neighbourhood.nearest(word, count) for word in list(distinct)[:words]]
