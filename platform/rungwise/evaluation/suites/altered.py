"""Minimal pairs made of any text: a sentence, and a copy altered by a rule.

    swapped_words    two neighbouring words change places
    other_word       a word gives way to another of like frequency
    agreement        is gives way to are, this to these, a to an, and the reverse; English only

Nobody judged these sentences: the question is which one was written. A model of word frequencies
cannot tell swapped words, which are the same words; by half credit it scores 50 % exactly.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from rungwise.core.stages.artifact import Artifact
from rungwise.tasks.data.made import PLAIN_WORD, LikeWords, count_words, read_paragraphs, text_hash

_SHORTEST, _LONGEST = 5, 25  # words; two-sided models read a sentence once a word
_REACH = 20  # how far apart in rank words of like frequency may be
_LEAST = 5  # occurrences of such a word in the held-out text
_COUNTERPARTS = (("is", "are"), ("was", "were"), ("has", "have"), ("this", "these"), ("a", "an"))
_AGREEMENT = {one: other for pair in _COUNTERPARTS for one, other in (pair, pair[::-1])}
_ENGLISH, _AMONG = "the", 10  # a text is English if this is among its commonest words


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in one thing; `number` is the pair's id within its paradigm."""

    paradigm: str
    phenomenon: str
    number: str
    good: str
    bad: str

    @property
    def name(self) -> str:
        return f"{self.paradigm}/{self.number}"


def held_out_sentences(corpus: Artifact) -> list[tuple[str, str]]:
    """The place and the text of each held-out sentence of middling length, each text once."""
    sentences: dict[str, str] = {}
    for paragraph in read_paragraphs(corpus):
        if paragraph.held_out:
            for number, sentence in enumerate(paragraph.sentences, start=1):
                if _SHORTEST <= len(PLAIN_WORD.findall(sentence)) <= _LONGEST:
                    place = f"{paragraph.document}, {paragraph.number + 1}.{number}"
                    sentences.setdefault(sentence, place)
    return [(place, sentence) for sentence, place in sentences.items()]


def alter_sentences(sentences: Sequence[tuple[str, str]], number: int | None) -> list[MinimalPair]:
    """The pairs of each rule, one of a sentence at most; `number` of each rule, of sentences drawn
    by their hash, or all."""
    counts = count_words(sentence for _, sentence in sentences)
    words = LikeWords(counts, _LEAST)
    rules: dict[str, Callable[[str], str]] = {
        "swapped_words": swap_words,
        "other_word": lambda sentence: replace_word(sentence, words),
    }
    if _ENGLISH in (word for word, _ in counts.most_common(_AMONG)):
        rules["agreement"] = break_agreement
    order = sorted(sentences, key=lambda item: text_hash(item[1]))
    pairs = []
    for rule, alter in rules.items():
        copies = ((place, sentence, alter(sentence)) for place, sentence in order)
        candidates = (MinimalPair(rule, rule, *each) for each in copies if each[-1])
        pairs += islice(candidates, number)
    return pairs


def swap_words(sentence: str) -> str:
    """Swap two neighbouring words; "" if there are none. The first word stays, because in some
    tokenizers a word at the start has other tokens."""
    pairs = [
        (one, other)
        for one, other in pairwise([*PLAIN_WORD.finditer(sentence)][1:])
        if one[0] != other[0] and not sentence[one.end() : other.start()].strip()
    ]
    if not pairs:
        return ""
    one, other = min(pairs, key=lambda pair: text_hash(sentence, pair[0].start()))
    between = sentence[one.end() : other.start()]
    return sentence[: one.start()] + other[0] + between + one[0] + sentence[other.end() :]


def replace_word(sentence: str, words: LikeWords) -> str:
    """Replace a word by one of like frequency; "" if no word can be."""
    return _replace(
        sentence,
        lambda match: match[0] in words,
        lambda word: "".join(words.draw(word, 1, _REACH, sentence)),
    )


def break_agreement(sentence: str) -> str:
    """Replace a word by its counterpart in number or sound; "" if there is none."""
    return _replace(sentence, lambda match: match[0] in _AGREEMENT, _AGREEMENT.__getitem__)


def _replace(
    sentence: str, allows: Callable[[re.Match[str]], bool], other: Callable[[str], str]
) -> str:
    matches = [match for match in PLAIN_WORD.finditer(sentence) if allows(match)]
    if not matches:
        return ""
    match = min(matches, key=lambda match: text_hash(sentence, match.start()))
    return sentence[: match.start()] + other(match[0]) + sentence[match.end() :]
