r"""Special tokens and the ids of their roles (padding, mask, separator and so on).

Tokenizers trained here begin with BERT's five in this order, ids 0 to 4. Other vocabularies differ:
BERT's own are 0, 100, 101, 102 and 103, and GPT-2 has only `<|endoftext|>`. Roles are recognised by
the usual names, among tokens marked special. The bytes that tokens stand for: byte-level `Ġcafé` is
` caf\xc3\xa9`.

Read text from outside the corpus as the corpus was read: with the clean-up before the tokenizer.

    raw text ──> CLEAN_UP ──> the tokenizer's own normalizer ──> tokens, with their places in the
                                                                 raw text

CLEAN_UP does to one text what corpus/cleaning/characters.py does to a corpus, and a line break
becomes a blank, as between two sentences. A clean text stays as it is. A fine-tuned model keeps the
tokenizer with it, so that the answer to a text needs no more than the model's own files.
"""

import json
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, normalizers

from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import ROLE_NAMES, SpecialIds
from rungwise.corpus.cleaning.characters import (
    CONTROLS,
    HTML_BREAK,
    INVISIBLE,
    JOINERS,
    LINE_BREAKS,
    ODD_BLANKS,
    UNREADABLE,
)
from rungwise.tokenizer.files import load_tokenizer


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


_STEPS = (
    normalizers.Replace(Regex(f"[{CONTROLS}{INVISIBLE}{UNREADABLE}]"), ""),
    normalizers.Replace(Regex(f"[\t{ODD_BLANKS}]"), " "),
    normalizers.Replace(Regex(f"[\v\f\r{LINE_BREAKS}]"), "\n"),
    normalizers.NFC(),
    normalizers.Replace(Regex(JOINERS), ""),
    normalizers.NFC(),  # without the joiner, a letter and its accent may meet
    normalizers.Replace(Regex(HTML_BREAK), " "),
    normalizers.Replace(Regex("[ \n]{2,}|\n"), " "),
    normalizers.Strip(),
)
CLEAN_UP = normalizers.Sequence(list(_STEPS))
_BEFORE = "a"  # a word of its own in every vocabulary


def load_reader(folder: Folder) -> Tokenizer:
    """Return the tokenizer of an artifact for text from outside the corpus: it cleans up first."""
    tokenizer = load_tokenizer(folder)
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([*_STEPS, *own])  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def remove_clean_up(tokenizer: Tokenizer) -> Tokenizer:
    """Take the clean-up off the tokenizer of an export, and return it: the corpus is clean, and the
    encoders know the normalizer that is left."""
    normalizer = tokenizer.normalizer
    is_sequence = isinstance(normalizer, normalizers.Sequence)
    steps = list(normalizer) if is_sequence else []  # pyright: ignore[reportArgumentType]
    first, own = steps[: len(_STEPS)], steps[len(_STEPS) :]
    if [each.__getstate__() for each in first] == [each.__getstate__() for each in _STEPS]:
        # The library writes a sequence in a sequence as one.
        rest = own[0] if len(own) == 1 else normalizers.Sequence(own) if own else None
        tokenizer.normalizer = rest  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def ids_after_blank(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the ids of each word as after a blank in a text, which some vocabularies write into
    the word, and the clean-up takes from its front."""
    (alone, *both) = tokenizer.encode_batch_fast(
        [_BEFORE, *(f"{_BEFORE} {word}" for word in words)], add_special_tokens=False
    )
    return [encoding.ids[len(alone.ids) :] for encoding in both]
