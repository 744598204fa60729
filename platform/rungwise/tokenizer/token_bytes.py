"""The bytes that the tokens of a vocabulary stand for: byte-level `Ġcafé` is ` caf\\xc3\\xa9`."""

from tokenizers import Tokenizer


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
