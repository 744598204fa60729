"""Words of a corpus added to a vocabulary that cuts them into pieces.

Taken are those that save the most tokens: how often the word stands in the text, times one less
than its pieces. Every id stays what it was, and new ones follow, so that weights trained with the
vocabulary need rows for the new words alone (pretraining/imported.py).

WordPiece takes the longest piece that fits, and BPE, once told so (`ignore_merges`), a word that is
in its vocabulary; both then have the word as one token and cut all others as before, but for
WordPiece those that begin with a new word.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer

from rungwise.core.errors import DataError

_KINDS = ("WordPiece", "BPE")
_BLANKS = "Ġ▁ "  # how a blank in front of a word is written in vocabularies
_SHORTEST = 3  # characters of a word


def with_new_words(
    tokenizer: Tokenizer, sentences: Iterable[str], number: int, minimum_count: int
) -> Tokenizer:
    """`tokenizer` with up to `number` words of `sentences`, each met `minimum_count` times or more.

    Raises DataError for a kind of vocabulary that cannot take them.
    """
    state = json.loads(tokenizer.to_str())
    kind = state["model"]["type"]
    if kind not in _KINDS or tokenizer.pre_tokenizer is None:
        raise DataError(
            f"tokenizer.new_words: expected a vocabulary of kind {' or '.join(_KINDS)} that cuts a "
            f"text into words first, found {kind}; set it to 0"
        )
    found = _words(tokenizer, sentences)
    saved: dict[str, int] = {}
    for word, count in found.items():
        pieces = len(tokenizer.model.tokenize(word))
        if count >= minimum_count and pieces > 1:
            saved[word] = count * (pieces - 1)
    chosen = sorted(saved, key=lambda word: (-saved[word], word))[:number]
    # Added tokens that the vocabulary lacks would move behind the new words.
    ids = {token["content"]: token["id"] for token in state["added_tokens"]}
    vocabulary = state["model"]["vocab"]
    vocabulary |= {token: index for token, index in ids.items() if token not in vocabulary}
    first = max(vocabulary.values()) + 1
    vocabulary |= {word: first + place for place, word in enumerate(chosen)}
    if kind == "BPE":
        state["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(state))


def _words(tokenizer: Tokenizer, sentences: Iterable[str]) -> Counter[str]:
    """Words as the model is given them, with how often they stand behind a blank."""
    pieces = Counter(piece for sentence in sentences for piece in sentence.split())
    normalizer, counts = tokenizer.normalizer, Counter[str]()
    for piece, count in pieces.items():
        text = f" {piece}"
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(
            text if normalizer is None else normalizer.normalize_str(text)
        ):
            letters = word.lstrip(_BLANKS)
            if len(letters) >= _SHORTEST and any(letter.isalpha() for letter in letters):
                counts[word] += count
    return counts
