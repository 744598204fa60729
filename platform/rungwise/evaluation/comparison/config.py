"""The settings of an evaluation: the recipe's block `evaluate`, and the config of its stage."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.evaluation.comparison.table import PublishedConfig
from rungwise.finetune import FinetuneConfig


class EvaluateConfig(Config):
    """The final comparison of the variants on each task, over several seeds.

    Five is the number of restarts behind the BERT paper's CoNLL-2003 figures.
    """

    # fine-tuning runs of each pretraining of a variant, each with its own seed
    num_seeds: int = Field(default=5, ge=2)
    first_seed: int = Field(default=1000, ge=0)  # the first of consecutive seeds
    # numbers of labelled examples to compare at, besides all of them; null: none
    label_budgets: list[int] | None = None
    budget_variants: list[str] | None = None  # variants to compare at these numbers; null: all
    # shares of the words (of four or more letters) to misspell in copies of the test split, which
    # are scored too; null: none
    noise: list[Annotated[float, Field(gt=0, le=1)]] | None = None
    # show what scikit-learn reaches with the same examples, without any pretraining
    rivals: bool = True
    # resamples behind a confidence interval
    bootstrap_resamples: int = Field(default=10_000, ge=100)
    published: PublishedConfig | None = None  # published results to show beside ours; null: none
    # variant whose model is kept and registered, from its best seed on validation; null: the first
    keep: str | None = None

    def seeds(self, pretraining: int = 0) -> list[int]:
        """The seeds that the n-th pretraining of every variant is fine-tuned with."""
        first = self.first_seed + pretraining * self.num_seeds
        return list(range(first, first + self.num_seeds))

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        budgets, noise = self.label_budgets or [], self.noise or []
        if len(set(noise)) < len(noise):
            raise ValueError(f"noise must be different shares, found {noise}")
        if any(budget < 1 for budget in budgets) or len(set(budgets)) < len(budgets):
            raise ValueError(f"label_budgets must be different numbers from 1, found {budgets}")
        return self


class CompareConfig(Config):
    """The variants by name, each with its fine-tuning where no sweep selects one."""

    task: str
    budget: int | None
    variants: dict[str, FinetuneConfig] = Field(min_length=1)
    evaluate: EvaluateConfig
