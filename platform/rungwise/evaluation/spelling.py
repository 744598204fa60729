"""Where words begin in a tokenizer's pieces: every family spells that in its own way.

WordPiece marks a piece that goes on with a word (`##ing`); byte-level BPE and Unigram mark the
blank before one (`Ġthe`, `▁the`). A token of a word vocabulary is a word, and one of a character
vocabulary hardly ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

MINIMUM_LETTERS = 3  # of an English word; other scripts have words of one sign
_LINE_BREAK = "Ċ"  # as byte-level BPE writes it
# Byte-level BPE writes a space and a line break as letters.
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "Ġ": "␣", "Ċ": "⏎"})
_HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"
Mark = Literal["##", "Ġ", "▁", "word", "character"]


@dataclass(frozen=True)
class Spelling:
    """`tokenizer` with the mark that it uses."""

    tokenizer: Tokenizer
    mark: Mark

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Spelling:
        """Found from the model and the decoder, so a vocabulary from elsewhere is read as well."""
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
        """True if the token goes on with the word before it."""
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
        """True if the token begins a word and is made of letters alone, of enough of them."""
        if self.mark in ("Ġ", "▁") and not self._piece(token).startswith(self.mark):
            return False
        # A WordPiece inside a word keeps its ##, half a character becomes a mark: neither is
        # letters.
        word = self.tokenizer.decode([token]).strip()
        return word.isalpha() and len(word) >= (MINIMUM_LETTERS if word.isascii() else 1)

    def _piece(self, token: int) -> str:
        piece = self.tokenizer.id_to_token(token)
        assert piece is not None, f"no token {token}"
        return piece


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as the vocabulary spells it, with blanks made visible.

    Tokens of bytes are shown as the characters that they are, if they are whole ones.
    """
    text = tokenizer.id_to_token(token)
    assert text is not None, f"no token {token}"
    if type(tokenizer.decoder).__name__ == "ByteLevel":
        decoded = tokenizer.decode([token], skip_special_tokens=False)
        text = text if _HALF_A_CHARACTER in decoded else decoded
    return text.translate(_BLANKS)
