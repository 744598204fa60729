"""How many words change if accents are dropped, as BERT's lower-casing does.

    count_marked({"año": 2, "casa": 6}) == Marked(words=8, marked=2, example="año")

Little is lost in English, but año (year) becomes another Spanish word, a Hindi word loses its
vowels, a Vietnamese one its tones, and Hangul falls apart into single letters.
"""

import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

_FEW = 0.01  # in English about 0.002, in Dutch 0.01, in Spanish 0.1


class Marked(NamedTuple):
    """Words in all, those that change, and the commonest of these."""

    words: int
    marked: int
    example: str

    @property
    def share(self) -> float:
        return self.marked / max(1, self.words)

    @property
    def matters(self) -> bool:
        """Whether so many words change that accents belong to the spelling of the language."""
        return self.share >= _FEW


def count_marked(counts: Mapping[str, int]) -> Marked:
    """Count the words that change without accents, from the number of times each word occurs."""
    marked = {
        word: count
        for word, count in counts.items()
        if not word.isascii() and strip_accents(word) != word
    }
    example = max(marked, key=lambda word: (marked[word], word), default="")
    return Marked(sum(counts.values()), sum(marked.values()), example)


def strip_accents(text: str) -> str:
    """Return the text decomposed and without nonspacing marks, as BERT's tokenizer does."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(each for each in decomposed if unicodedata.category(each) != "Mn")
