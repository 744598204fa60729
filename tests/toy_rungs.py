"""A trained model as suites ask it, without a run: of words, or an encoder and a table."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.suites.base import Rung
from rungwise.evaluation.suites.sentences import WORD_TABLES
from rungwise.models.families.gpt import GptConfig
from rungwise.tokenizer import FILE, SPECIAL_TOKENS, WordConfig
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.training import from_counts
from tests.conftest import SPECIAL_IDS

FIRST_WORD = len(SPECIAL_TOKENS)


def toy_rung(
    folder: Path,
    words: Sequence[str],
    model: Any,
    encoder: Any = None,
    split_punctuation: bool = True,
    corpus: Artifact | None = None,
    lowercase: bool = False,
) -> Rung:
    """A rung whose tokenizer has these words, word i with the id FIRST_WORD + i."""
    counts = {word: len(words) - i for i, word in enumerate(words)}
    config = WordConfig(
        vocab_size=len(words) + FIRST_WORD + 16,
        min_frequency=1,
        lowercase=lowercase,
        split_punctuation=split_punctuation,
    )
    folder.mkdir(parents=True, exist_ok=True)
    from_counts(config, counts).save(str(folder / FILE))
    bare = Artifact("", str(folder), Folder.at(folder), {})
    tokens = TokensSummary.model_construct(special=SPECIAL_IDS, headline="").replace_summary(bare)
    rung = Rung(bare, tokens, bare, corpus or bare, Context().report)
    rung.__dict__.update(model=model, encoder=encoder, untrained=None)
    if corpus is None:
        WORD_TABLES.get((bare.fingerprint, bare.fingerprint), dict)  # no text to make any of
    return rung


class Table:
    """Static vectors: one axis a word."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def vectors(self, ids: list[int]) -> NDArray[np.float32]:
        return np.eye(self.vocab_size, dtype=np.float32)[ids]


def encoder_rung(
    splitter: Any, encoder: Any, model: Any = None, config: Any = None, objective: str = "causal"
) -> Any:
    """As much of a rung as readers of words ask for."""
    summary = SimpleNamespace(model=config or GptConfig(), objective=objective)
    values = {"encoder": encoder, "model": model, "splitter": splitter, "corpus": None}
    return SimpleNamespace(**values, special=SPECIAL_IDS, summary=summary)
