"""Count words or characters, for vocabularies of the most frequent ones.

Texts are split at blanks first, and only distinct pieces go through the normalizer and
pre-tokenizer, which treat each piece alone.
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
    """Count the pre-tokens of `tokenizer` in `sentences`."""
    counts: Counter[str] = Counter()
    iterator = iter(sentences)
    while batch := list(islice(iterator, _SENTENCES_AT_ONCE)):
        counts.update(count_batch(tokenizer, pa.array(batch, pa.string())))
    return counts


def count_batch(tokenizer: Tokenizer, texts: pa.StringArray) -> Counter[str]:
    """Count the pre-tokens of `tokenizer`, whose normalizer must keep blanks, in `texts`."""
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
