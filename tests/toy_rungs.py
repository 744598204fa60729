"""A trained model as suites ask it, without a run: of words, or an encoder and a table."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import CLS_ID, SEP_ID, SPECIAL_TOKENS
from rungwise.evaluation.suites.base import Rung
from rungwise.models import ngram_model
from rungwise.models.families import kneser_ney
from rungwise.models.families.gpt import GptConfig
from rungwise.models.ngram_model import NgramLanguageModel
from rungwise.tokenizer import FILE
from rungwise.tokenizer.building import from_counts
from rungwise.tokenizer.config import WordConfig
from rungwise.tokenizer.token_stage import TokensSummary
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
    return rung


def counted(words: Sequence[str], lines: Sequence[str], order: int) -> NgramLanguageModel:
    """An n-gram model of lines, by word, with the ids of `toy_rung`."""
    texts = [[*(FIRST_WORD + words.index(word) for word in line.split()), SEP_ID] for line in lines]
    ids, offsets = np.concatenate(texts).astype(np.uint16), np.cumsum([0, *map(len, texts)])
    table = ngram_model.count_ngrams(ids, offsets, order, CLS_ID)
    smoothing = kneser_ney.Smoothing((0.5, 1.0, 1.5))
    return kneser_ney.estimate_model(table, FIRST_WORD + len(words), CLS_ID, smoothing)


class Table:
    """`WordVectors` of an array (V, D)."""

    def __init__(self, rows: Any) -> None:
        self._rows = np.asarray(rows, np.float32)
        self.vocab_size = len(self._rows)

    def vectors(self, ids: Sequence[int]) -> NDArray[np.float32]:
        return self._rows[list(ids)]


def encoder_rung(
    splitter: Any, encoder: Any, model: Any = None, config: Any = None, objective: str = "causal"
) -> Any:
    """As much of a rung as readers of words ask for."""
    summary = SimpleNamespace(model=config or GptConfig(), objective=objective)
    values = {"encoder": encoder, "model": model, "splitter": splitter, "corpus": None}
    return SimpleNamespace(**values, special=SPECIAL_IDS, summary=summary)
