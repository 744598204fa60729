"""The n-gram model as a family, fitted by counting, and its files in ARPA's format.

    documents ──> counts of n-grams ──> modified Kneser-Ney ──> P(token | n - 1 tokens before)

Each document starts a new context, like a line in kenlm; n-grams inside it may cross sentence ends.
In an ARPA file (SRILM, kenlm) <s> starts a sentence and is never predicted, </s> ends it, <unk>
stands for any unknown word.

N n-grams, V vocabulary, O order
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.errors import DataError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models import ngram_model as ngram_tables
from rungwise.models.families.kneser_ney import Smoothing, estimate_tensors
from rungwise.models.family import Family, Size
from rungwise.models.fitting import Create, Parts, Tasks, TextFile, Weights
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.ngram_model import NgramLanguageModel, Table

FILE = "model.arpa"
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
_NEVER = -99.0  # stands for log10 of 0
_LN_10 = math.log(10)


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


_LITTLE = 1_000_000  # tokens, of which the counts may give no discounts


class NgramConfig(Family):
    """An n-gram model of one order; published Kneser-Ney baselines have 5."""

    year: ClassVar[int] = 1998
    paper: ClassVar[str] = "Chen & Goodman"
    idea: ClassVar[str] = "counts words, and which words follow which"
    objectives: ClassVar = (dataclasses.replace(CAUSAL, reads=()),)  # counts need no instances

    kind: Literal["ngram"] = "ngram"
    order: int = Field(default=5, ge=1, le=16)
    # discounts for counts of 1, 2 and 3 or more, where a corpus is too small to estimate them;
    # kenlm's are [0.5, 1, 1.5]
    fallback_discounts: (
        tuple[
            Annotated[float, Field(gt=0, le=1)],
            Annotated[float, Field(gt=0, le=2)],
            Annotated[float, Field(gt=0, le=3)],
        ]
        | None
    ) = None
    # leave out n-grams that occur at most so often, by order; the last holds for longer ones
    prune: tuple[int, ...] = Field(default=(0,), min_length=1)

    @field_validator("prune")
    @classmethod
    def _keep_words_and_contexts(cls, thresholds: tuple[int, ...]) -> tuple[int, ...]:
        if thresholds[0] != 0 or list(thresholds) != sorted(thresholds):
            raise ValueError(
                "expected 0 for single tokens and then numbers that do not fall, such as "
                f"[0, 0, 1], found {list(thresholds)}"
            )
        return thresholds

    def describe(self) -> str:
        return f"order {self.order}, modified Kneser-Ney"

    def page_name(self, objective: Objective) -> str:
        return f"{self.order}-gram model"

    def suggest(self, size: Size) -> dict[str, Any]:
        little = size.tokens < _LITTLE
        return {"model.fallback_discounts": [0.5, 1.0, 1.5]} if little else {}

    def count(self, text: TokenisedText, special: SpecialIds) -> Table:
        return ngram_tables.count_documents(text, special, self.order)

    def estimate(
        self, parts: Parts, tasks: Tasks, create: Create, vocab_size: int, special: SpecialIds
    ) -> Weights:
        (start,) = special.require("cls")
        smoothing = Smoothing(self.fallback_discounts, self.prune)
        return estimate_tensors(parts, vocab_size, start, smoothing, tasks, create)

    def text_file(
        self, model: NgramLanguageModel, words: Sequence[str], special: SpecialIds
    ) -> TextFile:
        """Return an ARPA file; [UNK] is <unk> unless the vocabulary has a word spelt so."""
        names = [*words]
        (end,) = special.require("end")
        names[model.start_id], names[end] = START, END
        if special.unk is not None and UNKNOWN not in names:
            names[special.unk] = UNKNOWN
        return TextFile(FILE, "kenlm.Model", arpa_lines(model, names))

    def from_tensors(
        self, tensors: Mapping[str, NDArray[Any]], special: SpecialIds
    ) -> NgramLanguageModel:
        return dataclasses.replace(NgramLanguageModel.from_tensors(tensors), end_id=special.end)

    split = staticmethod(ngram_tables.split_table)
    merge = staticmethod(ngram_tables.merge_tables)
