"""Count words or characters, for the tokenizers whose vocabulary is the most frequent of them.

A text is cut at blanks first, and only distinct pieces go through the tokenizer's normalizer and
pre-tokenizer, both of which work on each piece alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

_SENTENCES_AT_ONCE = 20_000


def count_words(tokenizer: Tokenizer, sentences: Iterable[str]) -> Counter[str]:
    """Count each pre-token of `tokenizer` in `sentences`."""
    counts: Counter[str] = Counter()
    iterator = iter(sentences)
    while batch := list(islice(iterator, _SENTENCES_AT_ONCE)):
        counts.update(count_batch(tokenizer, pa.array(batch, pa.string())))
    return counts


def count_batch(tokenizer: Tokenizer, texts: pa.StringArray) -> Counter[str]:
    """Count each pre-token of `tokenizer`, whose normalizer must keep blanks, in `texts`."""
    pieces = pc.split_pattern(texts, " ")  # pyright: ignore[reportAttributeAccessIssue]
    seen = pieces.flatten().value_counts()
    counts: Counter[str] = Counter()
    normalize = tokenizer.normalizer.normalize_str
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    for piece, count in zip(
        seen.field("values").to_pylist(), seen.field("counts").to_pylist(), strict=True
    ):
        for word, _ in split(normalize(piece)):
            counts[word] += count
    blanks = len(pieces.flatten()) - len(texts)
    for word, _ in split(" "):
        counts[word] += blanks
    return counts
