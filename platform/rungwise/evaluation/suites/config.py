"""The union of all suites, discriminated by `kind`; new suites are added here."""

from typing import Annotated

from pydantic import Field

from rungwise.evaluation.suites.minimal_pairs import MinimalPairsSuite
from rungwise.evaluation.suites.perplexity import PerplexitySuite, RanksSuite
from rungwise.evaluation.suites.polysemy import PolysemySuite
from rungwise.evaluation.suites.probe import ProbeSuite
from rungwise.evaluation.suites.senses import PseudoWordsSuite, SensesSuite
from rungwise.evaluation.suites.sentence_probe import SentenceProbeSuite, SentencePropertiesSuite
from rungwise.evaluation.suites.sentences import SentencesSuite
from rungwise.evaluation.suites.speed import SpeedSuite
from rungwise.evaluation.suites.word_vectors import AnalogiesSuite, SimilaritySuite

SuiteConfig = Annotated[
    PerplexitySuite
    | RanksSuite
    | MinimalPairsSuite
    | SimilaritySuite
    | AnalogiesSuite
    | SentencesSuite
    | SentenceProbeSuite
    | SentencePropertiesSuite
    | SensesSuite
    | PseudoWordsSuite
    | PolysemySuite
    | ProbeSuite
    | SpeedSuite,
    Field(discriminator="kind"),
]
