"""Tokenizer stage: learn a vocabulary from a sample of the training documents, or read one; write
`tokenizer.json`, and measure it on held-out documents."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.cleaning.quality import Marked, count_marked, strip_accents
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusSummary, count_units
from rungwise.tokenizer.config import (
    ByteBpeConfig,
    TokenizerFileConfig,
    TrainedConfig,
    WordPieceConfig,
)
from rungwise.tokenizer.encoder import make_encoder
from rungwise.tokenizer.files import (
    FILE,
    load_tokenizer,
    read_tokenizer,
    remove_clean_up,
    special_ids,
)
from rungwise.tokenizer.token_stage import TokenizerSummary
from rungwise.tokenizer.training import train

_EVALUATED_CHARACTERS = 1_000_000  # of held-out text, to measure on
_BATCH_SENTENCES = 1000


def train_tokenizer(
    config: TrainedConfig | TokenizerFileConfig, inputs: Inputs, output: Folder, context: Context
) -> TokenizerSummary:
    """Train or read a tokenizer, write `tokenizer.json`, and measure it on held-out text. Raises
    DataError if the text cannot fill the vocabulary, or the file is not a vocabulary."""
    corpus = inputs["corpus"]
    if isinstance(config, TokenizerFileConfig):
        tokenizer, characters = remove_clean_up(read_tokenizer(config)), 0
    else:
        sample = _sample(corpus, "train", config.sample_megabytes * 1e6)
        tokenizer = train(_choose_accents(config, sample, context), sample)
        characters = sample.characters
        if isinstance(config, WordPieceConfig | ByteBpeConfig):
            _check_size(config, tokenizer, characters)
    with output.staged(FILE) as path:
        tokenizer.save(str(path))
    tokenizer = load_tokenizer(output)
    size = tokenizer.get_vocab_size()
    measured = _measure(tokenizer, corpus)
    return TokenizerSummary(
        kind=config.kind,
        vocab_size=size,
        special=special_ids(tokenizer),
        sample_characters=characters,
        **measured,
        headline=f"{config.kind} V={size:,}  {_rate(measured)}  "
        f"{measured['unknown_rate']:.3%} unknown",
    )


def _choose_accents(
    config: TrainedConfig, sentences: Iterable[str], context: Context
) -> TrainedConfig:
    """Keep accents where the config leaves them open and many words of the text have them."""
    if not isinstance(config, WordPieceConfig) or config.strip_accents is not None:
        return config
    marked = _count_marked(sentences if config.lowercase else ())
    if not marked.matters:
        return config
    context.report.note(
        f"accents and other marks are kept, since {marked.share:.0%} of the words have them: "
        f"{marked.example} would be {strip_accents(marked.example)}; "
        "tokenizer.strip_accents decides"
    )
    return config.model_copy(update={"strip_accents": False})


def _count_marked(sentences: Iterable[str]) -> Marked:
    counts: Counter[str] = Counter()
    for sentence in sentences:
        words = sentence.split()
        if sentence.isascii():
            counts[""] += len(words)
        else:
            counts.update(words)
    return count_marked(counts)


def _check_size(config: TrainedConfig, tokenizer: Tokenizer, characters: int) -> None:
    pieces = tokenizer.get_vocab_size()
    if pieces == config.vocab_size:
        return
    problem = (
        f"the text has so many different characters that {pieces:,} pieces are needed; raise it to "
        f"more than {pieces:,}"
        if pieces > config.vocab_size
        else f"{characters:,} characters of text fill only {pieces:,}; set tokenizer.vocab_size to "
        f"{pieces:,} or less, lower tokenizer.min_frequency, or add text"
    )
    raise DataError(f"tokenizer.vocab_size: {config.vocab_size:,} asked, but {problem}")


def _rate(measured: dict[str, Any]) -> str:
    """Format the tokens per word, or per character of text that blanks do not cut into words."""
    characters = round(measured["tokens_per_word"] * measured["characters_per_token"])
    _, unit = count_units(1, characters)
    rate = measured["tokens_per_word"] / (characters if unit == "characters" else 1)
    return f"{rate:.2f} tokens a {unit.removesuffix('s')}"


def _measure(tokenizer: Tokenizer, corpus: Artifact) -> dict[str, Any]:
    encoder = make_encoder(tokenizer)
    unknown_id = special_ids(tokenizer).unk
    held_out = _sample(corpus, "validation", _EVALUATED_CHARACTERS)
    tokens = unknown = words = 0
    iterator = iter(held_out)
    while batch := list(islice(iterator, _BATCH_SENTENCES)):
        words += sum(len(sentence.split()) for sentence in batch)
        encoded = encoder.encode(pa.array(batch, pa.string()))
        tokens += len(encoded.ids)
        if unknown_id is not None:
            unknown += int(np.count_nonzero(encoded.ids == unknown_id))
    return {
        "unknown_rate": unknown / max(tokens, 1),
        "tokens_per_word": tokens / max(words, 1),
        "characters_per_token": held_out.characters / max(tokens, 1),
    }


class _Sample:
    """Sentences from the start of each file up to its quota; counts their characters."""

    def __init__(self, folder: Folder, quotas: Mapping[str, int]) -> None:
        self._folder = folder
        self._quotas = quotas
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        self.characters = 0
        for file, quota in self._quotas.items():
            end = self.characters + quota
            documents = read_documents(self._folder, file)
            for sentence in (line for document in documents for line in document.sentences):
                if self.characters >= end:
                    break
                self.characters += len(sentence)
                yield sentence


def _sample(corpus: Artifact, split: str, limit: float) -> _Sample:
    """Sample up to `limit` characters, of all files alike: documents are sorted by source."""
    rows = [row for row in CorpusSummary.of(corpus).files if row.split == split]
    share = min(1.0, int(limit) / max(1, sum(row.characters for row in rows)))
    return _Sample(corpus.folder, {row.file: math.ceil(share * row.characters) for row in rows})
