"""The n-gram model as a family, fitted by counting instead of gradient descent.

    documents ──> counts of n-grams ──> modified Kneser-Ney ──> P(token | n - 1 tokens before)

Counting and smoothing are in kneser_ney.py. Each document starts a new context, like a line in
kenlm; n-grams inside it may cross sentence ends.

N n-grams, O order
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models.families import kneser_ney
from rungwise.models.families.kneser_ney import NgramLanguageModel, Table
from rungwise.models.family import Family
from rungwise.models.losses.objectives import CAUSAL, Objective


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

    def describe(self) -> str:
        return f"order {self.order}, modified Kneser-Ney"

    def page_name(self, objective: Objective) -> str:
        return f"{self.order}-gram model"

    def count(self, text: TokenisedText, special: SpecialIds) -> Table:
        """Count the n-grams of one shard of documents, each closed by the end symbol."""
        from rungwise.tokens.text import close_documents

        start, end = special.require("cls", "end")
        return kneser_ney.count_ngrams(*close_documents(text, end), self.order, start)

    def estimate(self, table: Table, vocab_size: int, special: SpecialIds) -> NgramLanguageModel:
        """Estimate the model from all counts. Raises DataError if the corpus is too small."""
        (start,) = special.require("cls")
        model = kneser_ney.estimate_model(table, vocab_size, start, self.fallback_discounts)
        return dataclasses.replace(model, end_id=special.end)

    def from_tensors(
        self, tensors: Mapping[str, NDArray[Any]], special: SpecialIds
    ) -> NgramLanguageModel:
        """Restore a model from `NgramLanguageModel.to_tensors`."""
        return dataclasses.replace(NgramLanguageModel.from_tensors(tensors), end_id=special.end)

    split = staticmethod(kneser_ney.split_table)
    merge = staticmethod(kneser_ney.merge_tables)
