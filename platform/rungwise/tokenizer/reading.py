"""Read text from outside the corpus as the corpus was read: with the clean-up before the tokenizer.

    raw text ──> CLEAN_UP ──> the tokenizer's own normalizer ──> tokens, with their places in the
                                                                 raw text

CLEAN_UP does to one text what corpus/cleaning/characters.py does to a corpus, and a line break
becomes a blank, as between two sentences. A clean text stays as it is. A fine-tuned model keeps the
tokenizer with it, so that the answer to a text needs no more than the model's own files.
"""

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, normalizers

from rungwise.core.storage.folder import Folder
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
