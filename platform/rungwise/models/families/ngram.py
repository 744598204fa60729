"""The n-gram model as a family, fitted by counting.

    documents ──> counts of n-grams ──> modified Kneser-Ney ──> P(token | n - 1 tokens before)

Each document starts a new context, like a line in kenlm; n-grams inside it may cross sentence ends.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from rungwise.core.errors import ConfigError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models import ngram_model as ngram_tables
from rungwise.models.families.arpa import FILE, arpa_lines, name_tokens, read_arpa
from rungwise.models.families.kneser_ney import Smoothing, estimate_tensors
from rungwise.models.family import Family, Size
from rungwise.models.fitting import Create, Parts, Tasks, TextFile, Weights
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.ngram_model import NgramLanguageModel, Table

_LITTLE = 1_000_000  # tokens, of which the counts may give no discounts


class NgramConfig(Family):
    """An n-gram model of one order; published Kneser-Ney baselines have 5."""

    year: ClassVar[int] = 1998
    paper: ClassVar[str] = "Chen & Goodman"
    idea: ClassVar[str] = "counts words, and which words follow which"
    objectives: ClassVar = (dataclasses.replace(CAUSAL, reads=()),)  # counts need no instances
    suffixes: ClassVar = (".arpa", ".arpa.gz")

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
        return TextFile(FILE, "kenlm.Model", arpa_lines(model, name_tokens(words, special)))

    @classmethod
    def read_text_file(
        cls, path: str, lines: Iterable[bytes], words: Sequence[str], special: SpecialIds
    ) -> tuple[Self, Weights]:
        """Read an ARPA file. Raises DataError as `read_arpa` does."""
        model = read_arpa(path, lines, name_tokens(words, special), special)
        return cls(order=model.order), model.to_tensors()

    def check_given(self, given: Family) -> None:
        """Raise ConfigError for n-grams of another order."""
        order = getattr(given, "order", None)
        if given.kind != self.kind or order != self.order:
            raise ConfigError(
                f"the counts of initial are n-grams of up to {order} words, and the model has the "
                f"order {self.order}; set its order (model.order, or model.counts.order of a "
                f"mixture) to {order}"
            )

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> NgramLanguageModel:
        return dataclasses.replace(NgramLanguageModel.from_tensors(tensors), end_id=special.end)

    split = staticmethod(ngram_tables.split_table)
    merge = staticmethod(ngram_tables.merge_tables)
