"""The summary of tokens, a manifest of their files, and the stage, which building.py builds."""

from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.core.stages.summary import SummaryPart, PerSplit, Summary
from rungwise.core.tokens import SpecialIds
from rungwise.tokens.config import identity, input_digests


class TokensRow(SummaryPart):
    """One file of tokens, made of one file of the corpus. `text_bytes` are in UTF-8."""

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
    LazyFunction("rungwise.tokens.building:encode_corpus"),
    TokensSummary,
    identity=identity,
    outside=input_digests,
    resumes=True,
)
