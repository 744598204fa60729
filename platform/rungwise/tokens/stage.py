"""The tokens stage, for planning; building.py encodes."""

from rungwise.core.stages.later import Later
from rungwise.core.stages.stage import StageType
from rungwise.tokens.config import identity, outside
from rungwise.tokens.summary import TokensSummary

TOKENS = StageType(
    "tokens",
    2,
    Later("rungwise.tokens.building:encode_corpus"),
    TokensSummary,
    identity=identity,
    outside=outside,
    resumes=True,
)
