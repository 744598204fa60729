"""The tokenizer stage, for planning; building.py learns or reads the vocabulary."""

from rungwise.core.lazy import LazyFunction
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Summary
from rungwise.core.tokens import SpecialIds
from rungwise.tokenizer.config import identity
from rungwise.tokenizer.files import input_digests


class TokenizerSummary(Summary):
    """The vocabulary, the size of its sample, and measurements on held-out text."""

    kind: str
    vocab_size: int
    special: SpecialIds
    sample_characters: int  # 0 for a vocabulary from a file without new words
    unknown_rate: float
    tokens_per_word: float
    characters_per_token: float


TOKENIZER = StageType(
    "tokenizer",
    6,
    LazyFunction("rungwise.tokenizer.building:train_tokenizer"),
    TokenizerSummary,
    identity=identity,
    outside=input_digests,
)
