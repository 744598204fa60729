"""Where words begin among a tokenizer's pieces, for each family of tokenizers.

WordPiece marks pieces that continue a word (`##ing`); byte-level BPE and Unigram mark the space
before a word (`Ġthe`, `▁the`). Tokens of a word vocabulary are words; characters hardly ever are.
"""

from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

MINIMUM_LETTERS = 3  # of a word in ASCII; words of other scripts can be one sign
_LINE_BREAK = "Ċ"  # in byte-level BPE, which writes spaces and line breaks as letters
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "Ġ": "␣", "Ċ": "⏎"})
_PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"
Mark = Literal["##", "Ġ", "▁", "word", "character"]


@dataclass(frozen=True)
class Spelling:
    """A tokenizer and how it marks word boundaries."""

    tokenizer: Tokenizer
    mark: Mark

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Spelling":
        """Infer the mark from the model and the decoder, so foreign vocabularies work too."""
        decoder = type(tokenizer.decoder).__name__
        match type(tokenizer.model).__name__:
            case "WordPiece":
                mark: Mark = "##"
            case "WordLevel":
                mark = "character" if decoder == "Fuse" else "word"
            case _:
                mark = "Ġ" if decoder == "ByteLevel" else "▁"
        return cls(tokenizer, mark)

    def continues(self, token: int) -> bool:
        """True if the token continues the word before it."""
        piece = self._piece(token)
        match self.mark:
            case "##":
                return piece.startswith("##")
            case "word":
                return False
            case "character":
                return piece.isalnum()
            case _:
                return piece[:1].isalnum() and not piece.startswith((self.mark, _LINE_BREAK))

    def is_word(self, token: int) -> bool:
        """True if the token begins a word and consists of enough letters and nothing else."""
        if self.mark in ("Ġ", "▁") and not self._piece(token).startswith(self.mark):
            return False
        # isalpha() is false for a WordPiece inside a word (##) and for part of a character.
        word = self.tokenizer.decode([token]).strip()
        return word.isalpha() and len(word) >= (MINIMUM_LETTERS if word.isascii() else 1)

    def _piece(self, token: int) -> str:
        piece = self.tokenizer.id_to_token(token)
        assert piece is not None, f"no token {token}"
        return piece


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as spelled in the vocabulary, with visible whitespace; bytes are decoded if they
    form whole characters."""
    text = tokenizer.id_to_token(token)
    assert text is not None, f"no token {token}"
    if type(tokenizer.decoder).__name__ == "ByteLevel":
        decoded = tokenizer.decode([token], skip_special_tokens=False)
        text = text if _PARTIAL_CHARACTER in decoded else decoded
    return text.translate(_BLANKS)
