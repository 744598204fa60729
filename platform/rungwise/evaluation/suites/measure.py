"""Measure stage: run suites on one rung. A new suite is added to the union `SuiteConfig`."""

import time
from typing import Annotated

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, StageType
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.suites import language_models, states, vectors
from rungwise.evaluation.suites.base import Rung
from rungwise.evaluation.suites.items import ITEMS, Items, MeasureSummary, encode_items, score_items
from rungwise.models.device import keep_freed_memory
from rungwise.tasks.scoring.metrics import format_metric

SuiteConfig = Annotated[
    language_models.PerplexitySuite
    | language_models.RanksSuite
    | language_models.MinimalPairsSuite
    | vectors.SimilaritySuite
    | vectors.AnalogiesSuite
    | vectors.SentencesSuite
    | vectors.SentenceProbeSuite
    | vectors.SentencePropertiesSuite
    | states.SensesSuite
    | states.PseudoWordsSuite
    | states.PolysemySuite
    | states.ProbeSuite
    | language_models.SpeedSuite,
    Field(discriminator="kind"),
]


class MeasureConfig(Config):
    """The suites by name."""

    suites: dict[str, SuiteConfig] = Field(min_length=1)


def measure(
    config: MeasureConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> MeasureSummary:
    """Run every suite that the rung supports. Inputs: pretrain, and the corpus, tokenizer and
    tokens of its training."""
    keep_freed_memory()
    rung = Rung(
        inputs["pretrain"], inputs["tokens"], inputs["tokenizer"], inputs["corpus"], context.report
    )
    items: list[Items] = []
    passed_over, seconds = {}, {}
    for number, (name, suite) in enumerate(config.suites.items()):
        context.report.progress(number, len(config.suites), suite=name)
        if not suite.serves(rung):
            passed_over[name] = suite.needs
            continue
        start = time.monotonic()
        try:
            items += suite.measure(rung, name)
        except DataError as error:
            if not suite.on_held_out:
                raise
            passed_over[name] = f"more text ({error})"
            context.report.note(f"{name} is left out: {error}")
            continue
        seconds[name] = time.monotonic() - start
    output.write_bytes(ITEMS, encode_items(items))
    scores = tuple(score for each in items for score in score_items([each]))
    headlines = []
    for score in [each for each in scores if each.group is None][:4]:
        metric = "" if score.metric == "accuracy" else score.metric.replace("_", " ")
        value = format_metric(score.value, score.metric)
        headlines.append(" ".join(filter(None, (score.suite, score.part, metric, value))))
    return MeasureSummary(
        scores=scores,
        passed_over=passed_over,
        seconds=seconds,
        headline="  ".join(headlines) or "no suite that it can answer",
    )


MEASURE = StageType(
    "measure",
    12,
    measure,
    MeasureSummary,
    # Digests of the files stand for paths.
    identity=lambda config: {
        name: suite.model_dump(mode="json", exclude=set(suite.reads))
        for name, suite in config.suites.items()
    },
    outside=lambda config: {
        name: suite.outside(f"measure.{name}") for name, suite in config.suites.items()
    },
)
