"""The tokenizer block: one config for each kind of tokenizer, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rungwise.core.config import Config


class _Trained(Config):
    """The keys of every trained vocabulary: its size and the sample it is learned from."""

    vocab_size: int = Field(default=30_522, ge=16)  # with the special tokens; BERT's own number
    lowercase: bool = True
    sample_megabytes: float = Field(default=64.0, gt=0)  # characters of training text, in millions


class WordPieceConfig(_Trained):
    """WordPiece, as in BERT (Devlin et al. 2019)."""

    kind: Literal["wordpiece"] = "wordpiece"
    min_frequency: int = Field(default=2, ge=1)


class ByteBpeConfig(_Trained):
    """Byte-level BPE, as in GPT-2 (Radford et al. 2019), which has no unknown text."""

    kind: Literal["byte_bpe"] = "byte_bpe"
    lowercase: bool = False
    min_frequency: int = Field(default=2, ge=1)


class UnigramConfig(_Trained):
    """The unigram language model tokenizer (Kudo 2018, arXiv:1804.10959)."""

    kind: Literal["unigram"] = "unigram"
    # The share of the sample's characters that get a piece; the rarest become unknown.
    character_coverage: float = Field(default=0.9995, ge=0.98, le=1)


class CharacterConfig(_Trained):
    """One token per character, blanks too; the `vocab_size` most frequent are kept."""

    kind: Literal["character"] = "character"
    lowercase: bool = False
    min_frequency: int = Field(default=1, ge=1)


class WordConfig(_Trained):
    """One token per word; the `vocab_size` most frequent are kept."""

    kind: Literal["word"] = "word"
    min_frequency: int = Field(default=2, ge=1)
    split_punctuation: bool = True  # False: words are separated by white space only


class TokenizerFileConfig(Config):
    """A vocabulary read from a file."""

    kind: Literal["file"] = "file"
    # A vocab.txt, a tokenizer.json, or a folder with one of them or with vocab.json and merges.txt.
    path: str = Field(min_length=1)
    lowercase: bool = True  # for a vocab.txt only: the other files say it themselves
    new_words: int = Field(default=0, ge=0)  # of the corpus, added where they save most tokens
    new_word_count: int = Field(default=10, ge=1)  # how often one must stand in the corpus


TrainedConfig = WordPieceConfig | ByteBpeConfig | UnigramConfig | CharacterConfig | WordConfig
CountedConfig = CharacterConfig | WordConfig
TokenizerConfig = Annotated[TrainedConfig | TokenizerFileConfig, Field(discriminator="kind")]


def identity(config: TrainedConfig | TokenizerFileConfig) -> dict[str, Any]:
    """The part of the config that decides the result: all but the path."""
    plain = config.model_dump(mode="json")
    plain.pop("path", None)
    return plain
