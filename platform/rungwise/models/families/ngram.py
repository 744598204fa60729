"""The n-gram model as a family, fitted by counting instead of gradient descent.

    documents ──> counts of n-grams ──> modified Kneser-Ney ──> P(token | n - 1 tokens before)

Counting and the model are in ngram_model.py, smoothing in kneser_ney.py. Each document starts a
new context, like a line in kenlm; n-grams inside it may cross sentence ends.

N n-grams, O order
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models.families import arpa
from rungwise.models.families import ngram_model as ngram_tables
from rungwise.models.families.kneser_ney import Smoothing, estimate_tensors
from rungwise.models.families.ngram_model import NgramLanguageModel, Table
from rungwise.models.family import Family
from rungwise.models.fitting import Create, Parts, Tasks, TextFile, Weights
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.suggestion import Size

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
    fallback_discounts: tuple[float, float, float] | None = None
    # leave out n-grams that occur at most so often, by order; the last holds for longer ones
    prune: tuple[int, ...] = Field(default=(0,), min_length=1)

    @field_validator("fallback_discounts")
    @classmethod
    def _leave_something(
        cls, discounts: tuple[float, float, float] | None
    ) -> tuple[float, float, float] | None:
        # Of 0, a context may leave no probability to other tokens; of more than the count, its own
        # tokens would get less than none.
        if discounts and not all(0 < d <= most for most, d in enumerate(discounts, start=1)):
            raise ValueError(
                "expected discounts of more than 0 and at most the counts 1, 2 and 3, found "
                f"{list(discounts)}; kenlm's are [0.5, 1, 1.5]"
            )
        return discounts

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
        """Count the n-grams of one shard of documents, each closed by the end symbol."""
        from rungwise.tokenizer.token_text import close_documents

        start, end = special.require("cls", "end")
        return ngram_tables.count_ngrams(*close_documents(text, end), self.order, start)

    def estimate(
        self, parts: Parts, tasks: Tasks, create: Create, vocab_size: int, special: SpecialIds
    ) -> Weights:
        """Estimate the arrays of the model from all counts. Raises DataError if the corpus is too
        small."""
        (start,) = special.require("cls")
        smoothing = Smoothing(self.fallback_discounts, self.prune)
        return estimate_tensors(parts, vocab_size, start, smoothing, tasks, create)

    def text_file(
        self, model: NgramLanguageModel, words: Sequence[str], special: SpecialIds
    ) -> TextFile:
        """Return an ARPA file with <s> for the start symbol, </s> for the end symbol, and <unk> for
        [UNK] unless the vocabulary has a word spelt <unk>."""
        names = [*words]
        (end,) = special.require("end")
        names[model.start_id], names[end] = arpa.START, arpa.END
        if special.unk is not None and arpa.UNKNOWN not in names:
            names[special.unk] = arpa.UNKNOWN
        loader = "kenlm.Model or rungwise.models.families.arpa.read_arpa"
        return TextFile(arpa.FILE, loader, arpa.arpa_lines(model, names))

    def from_tensors(
        self, tensors: Mapping[str, NDArray[Any]], special: SpecialIds
    ) -> NgramLanguageModel:
        """Restore a model from its arrays."""
        return dataclasses.replace(NgramLanguageModel.from_tensors(tensors), end_id=special.end)

    split = staticmethod(ngram_tables.split_table)
    merge = staticmethod(ngram_tables.merge_tables)
