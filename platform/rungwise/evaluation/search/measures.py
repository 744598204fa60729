"""The measures by which a search over pretraining chooses; a new one is added to `AnyMeasure`.

A search asks its measure for everything: the score, its name and direction, what must be measured
for it, and whether scores with other values of a key compare.
"""

from abc import abstractmethod
from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError
from rungwise.evaluation.suites.base import Paths, Suite
from rungwise.evaluation.suites.config import SuiteConfig
from rungwise.evaluation.suites.scores import MeasureSummary
from rungwise.evaluation.suites.similarity import SimilaritySuite
from rungwise.models.family import LayeredFamily
from rungwise.models.word_vectors.vector_family import VectorFamily
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.summary import PretrainSummary

# Keys that change what a loss is of, or its scale.
_LOSS_KEYS = ("pretrain.objective", "pretrain.mixture", "instances.kind", "instances.masking")
_SAME_PAIRS = 0.5  # a list with so many of its pairs in another is that list


class Measure(Config):
    """A score of a pretraining. Each subclass has a literal `kind`."""

    metric: ClassVar[str]  # the metric that says how a score is written
    higher_is_better: ClassVar[bool] = False

    kind: Any

    @abstractmethod
    def label(self, pretrain: PretrainSummary) -> str:
        """The name of the score for people."""

    @abstractmethod
    def score(self, pretrain: PretrainSummary, measured: MeasureSummary | None) -> float | None:
        """The score of a finished pretraining, None if it has none; `measured`: with `suite`."""

    def suite(self) -> SuiteConfig | None:
        """The suite to measure each trial with; None if its pretraining has the score."""
        return None

    def curve(self, pretrain: PretrainSummary) -> tuple[tuple[int, float], ...]:
        """The score while it learnt, by tokens; empty if it was not taken."""
        return ()

    def explain_key(self, key: str, model: Any) -> str:
        """Why scores with other values of a key of the recipe do not compare; "" if they do."""
        return ""

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        """Raise ConfigError if the model has no such score, or if one of the `suites` that the page
        reports would be used for choosing."""


class _Loss(Measure):
    @abstractmethod
    def key(self, pretrain: PretrainSummary) -> str:
        """Its name in the metrics of a validation."""

    def score(self, pretrain: PretrainSummary, measured: MeasureSummary | None) -> float | None:
        return pretrain.final.get(self.key(pretrain))

    def curve(self, pretrain: PretrainSummary) -> tuple[tuple[int, float], ...]:
        rows, key = pretrain.gradient.validation if pretrain.gradient else (), self.key(pretrain)
        return tuple((int(row["tokens"]), row[key]) for row in rows if key in row)

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        if not config.pretrain.holds_out:
            raise ConfigError(
                f"search.measure is {self.kind}, but the loss of {config.model.kind} is on the "
                "pairs that it learns from, where the longest training always wins; set "
                "search.measure to {kind: word_list, path: ...}, or on a ladder "
                "search.measure_of_vectors"
            )


class ValidationLoss(_Loss):
    """The loss on held-out text, or of held-out pairs of words where vectors are learnt."""

    metric: ClassVar[str] = "loss"

    kind: Literal["validation_loss"] = "validation_loss"

    def label(self, pretrain: PretrainSummary) -> str:
        unit = pretrain.model.objective(pretrain.objective).tokens.unit
        return f"validation loss (nats per {unit})"

    def key(self, pretrain: PretrainSummary) -> str:
        return pretrain.model.objective(pretrain.objective).tokens.loss_key

    def explain_key(self, key: str, model: Any) -> str:
        if key.startswith("tokenizer."):
            return (
                "losses over several tokenizers do not compare; set search.measure to "
                "{kind: bits_per_byte}"
            )
        of_vectors = isinstance(model, VectorFamily)
        scales = of_vectors and key.startswith("model.") and key != "model.size"
        if not key.startswith(_LOSS_KEYS) and not scales:
            return ""
        remedy = "set search.measure to {kind: word_list, path: ...}" if of_vectors else ""
        return (
            f"another value is another loss, and these do not compare; {remedy or 'leave it out'}"
        )


class BitsPerByte(_Loss):
    """Bits for each byte of held-out text, which compare over tokenizers."""

    metric: ClassVar[str] = "bits_per_byte"

    kind: Literal["bits_per_byte"] = "bits_per_byte"

    def label(self, pretrain: PretrainSummary) -> str:
        return "bits per byte"

    def key(self, pretrain: PretrainSummary) -> str:
        return "bits_per_byte"

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        super().check(config, suites)
        if not config.objective.is_code_length:
            raise ConfigError(
                f"search.measure is bits_per_byte, but the loss of {config.objective.name} is not "
                "the length of a code; take validation_loss"
            )


class WordList(Measure):
    """The correlation with people's ratings of pairs of words, the mean over the lists; of lists
    that `measure` does not report, since the best of several trials is too good on its own list."""

    metric: ClassVar[str] = "correlation"
    higher_is_better: ClassVar[bool] = True

    kind: Literal["word_list"] = "word_list"
    path: Paths  # files or folders, as of a suite `similarity`

    def label(self, pretrain: PretrainSummary) -> str:
        return "correlation with people's ratings (x 100)"

    def suite(self) -> SimilaritySuite:
        return SimilaritySuite(path=self.path)

    def score(self, pretrain: PretrainSummary, measured: MeasureSummary | None) -> float | None:
        scores = measured.scores if measured else ()
        values = [row.value for row in scores if row.metric == "correlation" and row.group is None]
        return fmean(values) if values else None

    def check(self, config: PretrainStageConfig, suites: Mapping[str, Suite]) -> None:
        if not isinstance(config.model, LayeredFamily):
            raise ConfigError(
                f"search.measure is word_list, but model.kind {config.model.kind} has no "
                "vectors of words; take validation_loss"
            )
        own = self.suite().rated_pairs("search.measure")
        for name, suite in suites.items():
            lists = suite.rated_pairs(f"measure.{name}")
            reported = {pair for pairs in lists.values() for pair in pairs}
            for file, pairs in own.items():
                shared = sum(pair in reported for pair in pairs)
                if shared >= _SAME_PAIRS * len(pairs):
                    raise ConfigError(
                        f"search.measure.path: {shared} of {len(pairs)} pairs of {file} are in "
                        f"measure.{name}, which the page reports; choose by another list"
                    )


AnyMeasure = Annotated[ValidationLoss | BitsPerByte | WordList, Field(discriminator="kind")]
