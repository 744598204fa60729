"""Special tokens and the ids of their roles (padding, mask, separator and so on).

Tokenizers trained here begin with BERT's five in this order, ids 0 to 4. Other vocabularies differ:
BERT's own are 0, 100, 101, 102 and 103, and GPT-2 has only `<|endoftext|>`. Roles are recognised by
the usual names, among tokens marked special. The bytes that tokens stand for: byte-level `Ġcafé` is
` caf\\xc3\\xa9`.
"""

import json

from tokenizers import Tokenizer

from rungwise.core.tokens import ROLE_NAMES, SpecialIds


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """Return the roles of the special tokens of `tokenizer`.

    Special tokens are added tokens marked as such, and the model's unknown token. A word that only
    looks like one, such as `<unk>` in a vocabulary of words, is not.
    """
    special = {
        token.content: index
        for index, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    unknown = _unknown_token(tokenizer)
    if unknown is not None and (index := tokenizer.token_to_id(unknown)) is not None:
        special.setdefault(unknown, index)
    roles = {
        role: next((special[name] for name in names if name in special), None)
        for role, names in ROLE_NAMES.items()
    }
    if roles["unk"] is None and unknown is not None:
        roles["unk"] = special.get(unknown)
    return SpecialIds(**roles, ids=tuple(sorted(special.values())))


def _unknown_token(tokenizer: Tokenizer) -> str | None:
    model = tokenizer.model
    if (token := getattr(model, "unk_token", None)) is not None:
        return str(token)
    # A Unigram model states its unknown id only in its file.
    if type(model).__name__ == "Unigram":
        index = json.loads(tokenizer.to_str())["model"]["unk_id"]
        return None if index is None else tokenizer.id_to_token(index)
    return None


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token, by id: its content if byte-level, else UTF-8 of the piece
    with its marks (`##ing`, `▁the`); empty for an id without a token."""
    pieces = [
        tokenizer.id_to_token(index) or ""
        for index in range(tokenizer.get_vocab_size(with_added_tokens=True))
    ]
    if type(tokenizer.decoder).__name__ != "ByteLevel":
        return [piece.encode() for piece in pieces]
    # GPT-2's letters: printable Latin-1 for itself, other bytes in order from U+0100.
    letters = {chr(byte): byte for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = [byte for byte in range(256) if chr(byte) not in letters]
    letters |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return [
        bytes(letters[letter] for letter in piece)
        if all(letter in letters for letter in piece)
        else piece.encode()  # added as it stands
        for piece in pieces
    ]
