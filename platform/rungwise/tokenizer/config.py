"""The tokenizer block: one config for each kind of tokenizer, told apart by `kind`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from rungwise.core.configuration.config import Config


class _Trained(Config):
    """The keys of every trained vocabulary: its size and the sample it is learned from."""

    vocab_size: int = Field(default=30_522, ge=16)  # special tokens included; the default is BERT's
    lowercase: bool = True
    # drop accents and other marks (ano for año); null: only in lower-cased WordPiece, as in BERT,
    # and only if fewer than 1 % of the words have any
    strip_accents: bool | None = None
    # training text to learn from, in millions of characters
    sample_megabytes: float = Field(default=64.0, gt=0)


class WordPieceConfig(_Trained):
    """WordPiece, as in BERT (Devlin et al. 2019)."""

    kind: Literal["wordpiece"] = "wordpiece"
    min_frequency: int = Field(default=2, ge=1)  # times a pair must occur to be merged


class ByteBpeConfig(_Trained):
    """Byte-level BPE, as in GPT-2 (Radford et al. 2019); no text is unknown to it."""

    kind: Literal["byte_bpe"] = "byte_bpe"
    lowercase: bool = False
    min_frequency: int = Field(default=2, ge=1)  # times a pair must occur to be merged


class CharacterConfig(_Trained):
    """One token per character, blanks included; the `vocab_size` most frequent are kept."""

    kind: Literal["character"] = "character"
    lowercase: bool = False
    min_frequency: int = Field(default=1, ge=1)  # times a character must occur to be kept


class WordConfig(_Trained):
    """One token per word; the `vocab_size` most frequent are kept."""

    kind: Literal["word"] = "word"
    min_frequency: int = Field(default=2, ge=1)  # times a word must occur to be kept
    split_punctuation: bool = True  # false: split words at white space only


class TokenizerFileConfig(Config):
    """A vocabulary read from a file."""

    kind: Literal["file"] = "file"
    # a vocab.txt, a tokenizer.json, or a folder with one of them or with vocab.json and merges.txt
    path: str = Field(min_length=1)
    # for a vocab.txt only; the other files state both themselves
    lowercase: bool = True
    strip_accents: bool | None = None  # null: as lowercase, as in BERT


TrainedConfig = WordPieceConfig | ByteBpeConfig | CharacterConfig | WordConfig
CountedConfig = CharacterConfig | WordConfig
TokenizerConfig = Annotated[TrainedConfig | TokenizerFileConfig, Field(discriminator="kind")]


def identity(config: TrainedConfig | TokenizerFileConfig) -> dict[str, Any]:
    """The part of the config that decides the result: all but the path."""
    plain = config.model_dump(mode="json")
    plain.pop("path", None)
    return plain
