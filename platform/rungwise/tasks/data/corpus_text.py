"""The text of a corpus as tasks are made of it: paragraphs, and the words of any script."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rungwise.core.randomness import uniform
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusSummary
from rungwise.tokens.segmenters import HAN
from rungwise.tokens.text import document_hash

# A Han character, or a run of letters with their marks: what is neither blank, digit nor
# punctuation. An apostrophe is part of a word. A plain word is no part of a name such as `max_iter`
# and has no punctuation beside it.
_PUNCTUATION = (
    "!-&(-/:-@\\[-`{-\xbf\u0964\u0965\u2000-\u2018\u201a-\u206f\u3000-\u3020\uff00-\uff20"
)
_LETTERS = rf"[^\s\d{HAN}{_PUNCTUATION}]+"
WORD = re.compile(rf"[{HAN}]|{_LETTERS}")
PLAIN_WORD = re.compile(rf"[{HAN}]|(?<!\S){_LETTERS}(?!\S)")

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Paragraph:
    """Paragraph `number` of a document; `label` is the document's origin."""

    document: str
    label: str
    number: int
    sentences: tuple[str, ...]
    held_out: bool

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def read_paragraphs(corpus: Artifact) -> Iterator[Paragraph]:
    """Yield the paragraphs of the corpus in order."""
    for row in CorpusSummary.of(corpus).files:
        for document in read_documents(corpus.folder, row.file):
            for number, sentences in enumerate(document.paragraphs()):
                yield Paragraph(
                    document.id, document.label, number, sentences, row.split == "validation"
                )


def text_hash(*parts: object) -> int:
    """Hash the parts to 64 bits, for draws that depend on them alone."""
    return document_hash("\0".join(map(str, parts)))


def in_turns(
    pool: Iterable[_Item], paragraph_of: Callable[[_Item], Paragraph], seed: int
) -> list[_Item]:
    """Order by the hash of the text, independent of the order of the pool; documents take turns, so
    that a large one does not crowd out the small ones."""
    turns: Counter[str] = Counter()
    ranked = []
    for item in sorted(
        pool, key=lambda item: float(uniform(seed, text_hash(paragraph_of(item).text)))
    ):
        document = paragraph_of(item).document
        ranked.append((turns[document], item))
        turns[document] += 1
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


class LikeWords:
    """The words of a text that have nearly the same frequency as a given one.

    Only words in small letters that occur `least` times or more; a script without capitals has
    only small letters.
    """

    def __init__(self, counts: Mapping[str, int], least: int) -> None:
        self._words = sorted(
            (word for word, count in counts.items() if count >= least and word == word.lower()),
            key=lambda word: (counts[word], word),
        )
        self._ranks = {word: rank for rank, word in enumerate(self._words)}

    def __contains__(self, word: str) -> bool:
        return word in self._ranks

    def draw(self, word: str, number: int, reach: int, *parts: object) -> list[str]:
        """Draw `number` others among the `reach` nearest in rank; fewer if there are fewer."""
        first = max(0, min(self._ranks[word] - reach // 2, len(self._words) - reach - 1))
        near = [each for each in self._words[first : first + reach + 1] if each != word]
        near.sort(key=lambda each: text_hash(each, *parts))
        return near[:number]


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the plain words."""
    return Counter(match[0] for text in texts for match in PLAIN_WORD.finditer(text))
