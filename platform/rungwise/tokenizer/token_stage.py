"""The stages of tokenizers and tokens, for planning: summaries, and the config of tokens, which
follows from what the instances need."""

from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.core.stages.artifact import PerSplit, Summary, SummaryPart
from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.core.tokens import SpecialIds
from rungwise.tokenizer.config import identity
from rungwise.tokenizer.files import input_digests
from rungwise.tokenizer.mask_units import MaskUnitsConfig


class TokensConfig(Config):
    """Whether to mark where mask units begin, and which these are. Of the training documents, in an
    order of their own, it encodes those between the shares `skip` and `share`."""

    units: bool = False
    mask_units: MaskUnitsConfig = MaskUnitsConfig()
    share: float = 1.0
    skip: float = 0.0


def tokens_identity(config: TokensConfig) -> dict[str, Any]:
    """Return the part of the config that decides the result."""
    plain = config.model_dump(mode="json")
    if config.share == 1:
        del plain["share"]  # recipes from before it have the same tokens
    if config.skip == 0:
        del plain["skip"]
    return plain


class TokensRow(SummaryPart):
    """One file of tokens, made of one file of the corpus. `text_bytes` are in UTF-8, estimated by
    documents where only a share of these was drawn."""

    file: str
    split: str
    source: str
    sha256: str
    documents: int
    sentences: int
    tokens: int
    text_bytes: int


class TokensSummary(Summary):
    """The text as tokens. `unigram_loss` is the mean loss of held-out tokens, in nats, guessed by
    their frequencies in the training text: what a model without context can reach. `text_bytes`
    counts sentences joined by a blank. `labels` are the names of the labels of documents, by
    number; () where documents have none."""

    files: tuple[TokensRow, ...]
    vocab_size: int
    special: SpecialIds
    documents: PerSplit
    tokens: PerSplit
    text_bytes: PerSplit
    unigram_loss: float
    labels: tuple[str, ...] = ()

    def split_files(self, split: str) -> list[TokensRow]:
        return [row for row in self.files if row.split == split]


TOKENS = StageType(
    "tokens",
    3,
    LazyFunction("rungwise.tokenizer.token_building:encode_corpus"),
    TokensSummary,
    identity=tokens_identity,
    resumes=True,
)


class TokenizerSummary(Summary):
    """The vocabulary, the size of its sample, and measurements on held-out text."""

    kind: str
    vocab_size: int
    special: SpecialIds
    sample_characters: int  # 0 for a vocabulary from a file
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
