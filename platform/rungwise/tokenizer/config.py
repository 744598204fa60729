"""The tokenizer block: one config a kind, joined by `kind`; and what identifies a foreign file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rungwise.core.config import Config


class _Trained(Config):
    """What a vocabulary is learned from and how large it is."""

    vocab_size: int = Field(default=30_522, ge=16)  # with the special tokens; BERT's own number
    lowercase: bool = True
    sample_megabytes: float = Field(default=64.0, gt=0)  # characters of training text, in millions


class WordPieceConfig(_Trained):
    """Pieces of words, as BERT's (Devlin et al. 2019)."""

    kind: Literal["wordpiece"] = "wordpiece"
    min_frequency: int = Field(default=2, ge=1)


class ByteBpeConfig(_Trained):
    """Merges of bytes, as GPT-2's (Radford et al. 2019): no text is unknown."""

    kind: Literal["byte_bpe"] = "byte_bpe"
    lowercase: bool = False
    min_frequency: int = Field(default=2, ge=1)


class UnigramConfig(_Trained):
    """Pieces of a unigram language model (Kudo 2018, arXiv:1804.10959)."""

    kind: Literal["unigram"] = "unigram"
    # The share of the characters of the sample that get a piece; the rarest rest is unknown.
    character_coverage: float = Field(default=0.9995, ge=0.98, le=1)


class CharacterConfig(_Trained):
    """A token a character, blanks too; the vocabulary is what the text has, to `vocab_size`."""

    kind: Literal["character"] = "character"
    lowercase: bool = False
    min_frequency: int = Field(default=1, ge=1)


class WordConfig(_Trained):
    """A token a word; the vocabulary is what the text has, to `vocab_size`."""

    kind: Literal["word"] = "word"
    min_frequency: int = Field(default=2, ge=1)
    split_punctuation: bool = True  # False: a word is what stands between white space


class TokenizerFileConfig(Config):
    """A vocabulary from elsewhere."""

    kind: Literal["file"] = "file"
    # A vocab.txt, a tokenizer.json, or a folder with one of them or with vocab.json and merges.txt.
    path: str = Field(min_length=1)
    lowercase: bool = True  # of a vocab.txt, which does not say; other files do


TrainedConfig = WordPieceConfig | ByteBpeConfig | UnigramConfig | CharacterConfig | WordConfig
CountedConfig = CharacterConfig | WordConfig
TokenizerConfig = Annotated[TrainedConfig | TokenizerFileConfig, Field(discriminator="kind")]


def identity(config: TrainedConfig | TokenizerFileConfig) -> dict[str, Any]:
    """The config as far as it decides what comes out: all but the path."""
    plain = config.model_dump(mode="json")
    plain.pop("path", None)
    return plain
