"""Add words of a corpus to a vocabulary that splits them into pieces.

The words that save the most tokens are added: frequency times (pieces - 1). Existing ids stay, so
trained weights need new rows only for the new words (pretraining/initial.py).

WordPiece takes the longest matching piece, and BPE with `ignore_merges` a word of its vocabulary.
Both encode a new word as one token and others as before, except that WordPiece also changes words
that begin with a new word.
"""

import json
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer

from rungwise.core.errors import DataError

_KINDS = ("WordPiece", "BPE")
_BLANKS = "Ġ▁ "  # a blank before a word, as vocabularies write it
_SHORTEST = 3  # characters of a word


def add_new_words(
    tokenizer: Tokenizer, sentences: Iterable[str], number: int, minimum_count: int
) -> Tokenizer:
    """Add up to `number` words of `sentences` that occur at least `minimum_count` times.

    Raises DataError for a kind of vocabulary that cannot take them.
    """
    state = json.loads(tokenizer.to_str())
    kind = state["model"]["type"]
    if kind not in _KINDS or tokenizer.pre_tokenizer is None:
        raise DataError(
            f"tokenizer.new_words: expected a vocabulary of kind {' or '.join(_KINDS)} that cuts a "
            f"text into words first, found {kind}; set it to 0"
        )
    savings: dict[str, int] = {}
    for word, count in _count_words(tokenizer, sentences).items():
        pieces = len(tokenizer.model.tokenize(word))
        if count >= minimum_count and pieces > 1:
            savings[word] = count * (pieces - 1)
    new_words = sorted(savings, key=lambda word: (-savings[word], word))[:number]
    # Added tokens missing in the vocabulary would otherwise move behind the new words.
    ids = {token["content"]: token["id"] for token in state["added_tokens"]}
    vocabulary = state["model"]["vocab"]
    vocabulary |= {token: index for token, index in ids.items() if token not in vocabulary}
    first = max(vocabulary.values()) + 1
    vocabulary |= {word: first + place for place, word in enumerate(new_words)}
    if kind == "BPE":
        state["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(state))


def _count_words(tokenizer: Tokenizer, sentences: Iterable[str]) -> Counter[str]:
    """Count words as the model receives them after a blank."""
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
