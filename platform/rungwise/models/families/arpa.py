"""N-gram models as ARPA files, the text format of SRILM, kenlm and other tools.

    \\data\\
    ngram 1=9
    ngram 2=30

    \\1-grams:
    -1.2041  the  -0.3010       log10 P of the last word, the n-gram, log10 of its backoff weight

    \\2-grams:
    -0.6021  the cat            the highest order has no backoff weights

    \\end\\

<s> starts a sentence and is never predicted, </s> ends it, <unk> stands for any unknown word.

N n-grams, V vocabulary, O order
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.models.families.ngram_model import NgramLanguageModel, find_ngrams

FILE = "model.arpa"
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
_NEVER = -99.0  # stands for log10 of 0
_LN_10 = math.log(10)


@dataclass(frozen=True)
class Arpa:
    """The model of an ARPA file and the word of each id."""

    model: NgramLanguageModel
    words: tuple[str, ...]

    def encode(self, sentences: Iterable[Sequence[str]]) -> list[list[int]]:
        """Return the ids of sentences of words, each closed by the end symbol. Raises DataError for
        an unknown word if the file has no <unk>."""
        ids = {word: index for index, word in enumerate(self.words)}
        unknown = ids.get(UNKNOWN)
        texts = []
        for sentence in sentences:
            indices = [ids.get(word, unknown) for word in (*sentence, END)]
            text = [index for index in indices if index is not None]
            if len(text) < len(indices):
                raise DataError(
                    f"expected words of the ARPA file, which has no {UNKNOWN}, found "
                    f"{[*sentence, END][indices.index(None)]!r}; estimate it with {UNKNOWN}"
                )
            texts.append(text)
        return texts


def arpa_lines(model: NgramLanguageModel, words: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the file; `words` holds the word of each id, START and END included.
    Raises DataError for a word that contains blanks or occurs twice."""
    for word in words:
        if len(word.split()) != 1:
            raise DataError(
                f"expected words without blanks for an ARPA file, found {word!r}; give the n-gram "
                "model a tokenizer whose tokens have none"
            )
    if len(set(words)) < len(words):
        twice = next(word for n, word in enumerate(words) if word in words[:n])
        raise DataError(f"expected each word once for an ARPA file, found {twice!r} twice")
    yield "\\data\\"
    for order, values in enumerate(model.ngram_log_probabilities, start=1):
        yield f"ngram {order}={len(values)}"
    ngrams = np.arange(model.vocab_size)[:, None]  # (N, n)
    for order, values in enumerate(model.ngram_log_probabilities, start=1):
        if order > 1:
            keys = model.keys[order - 2]
            context = ngrams[keys // model.vocab_size]
            ngrams = np.concatenate([context, (keys % model.vocab_size)[:, None]], axis=1)
        yield ""
        yield f"\\{order}-grams:"
        logs = np.maximum(values / _LN_10, _NEVER).tolist()
        ids: list[list[int]] = ngrams.tolist()
        rows = (" ".join([words[index] for index in row]) for row in ids)
        if order < model.order:
            backoffs = (model.log_backoffs[order - 1] / _LN_10).tolist()
            for log, row, backoff in zip(logs, rows, backoffs, strict=True):
                yield f"{log:.9g}\t{row}\t{backoff:.9g}"
        else:
            yield from (f"{log:.9g}\t{row}" for log, row in zip(logs, rows, strict=True))
    yield ""
    yield "\\end\\"


def read_arpa(text: Iterable[str]) -> Arpa:
    """Read the model from the lines of an ARPA file, which may be an open file. Raises DataError
    for malformed lines and for an n-gram whose prefix is not in the file."""
    sections: list[list[list[str]]] = []
    for number, line in enumerate(text, start=1):
        fields = line.split()
        if not fields or (not sections and not line.startswith("\\")):
            continue
        if fields[0].startswith("\\") and fields[0].endswith(("-grams:", "\\")):
            if fields[0] == "\\end\\":
                break
            if fields[0] != "\\data\\":
                sections.append([])
            continue
        order = len(sections)
        numbers = [fields[0], *fields[order + 1 :]]
        if len(fields) not in (order + 1, order + 2) or not all(map(_is_number, numbers)):
            raise DataError(
                f"line {number} of the ARPA file: expected a number, {order} words and perhaps a "
                f"number, found {line.strip()!r:.60}"
            )
        sections[-1].append(fields)
    else:
        raise DataError("expected an ARPA file that ends with \\end\\, found none")
    sections = [rows for rows in sections if rows]
    words = tuple(fields[1] for fields in sections[0]) if sections else ()
    ids = {word: index for index, word in enumerate(words)}
    for word in (START, END):
        if word not in ids:
            raise DataError(f"expected {word} among the words of the ARPA file, found none")
    keys: list[NDArray[np.int64]] = []
    probabilities, backoffs = [], []
    for order, rows in enumerate(sections, start=1):
        index = np.array([[ids.get(word, -1) for word in row[1 : order + 1]] for row in rows])
        index = index.reshape(-1, order)
        if (index < 0).any():
            raise DataError(f"a {order}-gram of the ARPA file has a word that is no 1-gram of it")
        logs = np.array([float(row[0]) for row in rows]) * _LN_10
        weights = [float(row[order + 1]) if len(row) > order + 1 else 0.0 for row in rows]
        ascending = np.arange(len(rows))
        if order > 1:
            key = _keys(index, keys, len(words))
            ascending = np.argsort(key)
            keys.append(key[ascending])
        else:
            logs[ids[START]] = -math.inf
        probabilities.append(logs[ascending])
        backoffs.append(np.array(weights)[ascending] * _LN_10)
    model = NgramLanguageModel(
        vocab_size=len(words),
        start_id=ids[START],
        discounts=np.full((len(sections), 3), math.nan),  # not stored in the file
        keys=tuple(keys),
        ngram_log_probabilities=tuple(probabilities),
        log_backoffs=tuple(backoffs[:-1]),
        end_id=ids[END],
    )
    return Arpa(model, words)


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _keys(
    ngrams: NDArray[np.int64], shorter: Sequence[NDArray[np.int64]], vocab_size: int
) -> NDArray[np.int64]:
    """Return the keys of `ngrams` (N, n), given those of orders 2 to n - 1; see ngram_model.py."""
    context, exists = find_ngrams(ngrams[:, :-1], shorter, vocab_size)
    if not exists.all():
        raise DataError(
            f"expected the beginning of each {ngrams.shape[1]}-gram of the ARPA file among its "
            "shorter n-grams, found one that is not"
        )
    return context * vocab_size + ngrams[:, -1]
