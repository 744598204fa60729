"""The corpus stage, for planning; corpus/building/stage.py builds it."""

from rungwise.core.stages.later import Later
from rungwise.core.stages.stage import StageType
from rungwise.corpus.config import identity
from rungwise.corpus.files import outside
from rungwise.corpus.summary import CorpusSummary

CORPUS = StageType(
    "corpus",
    7,
    Later("rungwise.corpus.building.stage:build_corpus"),
    CorpusSummary,
    identity=identity,
    outside=outside,
    resumes=True,
    refuse=Later("rungwise.corpus.building.stage:refuse_small"),
)
