"""Values about tokens that all layers share: text as ids, and the ids of special tokens.

N tokens, S sentences, D documents
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError

Ids = NDArray[np.unsignedinteger]
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(5)
END_OF_TEXT = "<|endoftext|>"

# The names of each role, in order of preference.
ROLE_NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "cls": (CLS, "<s>", "<cls>"),
    "sep": (SEP, "</s>", "<sep>"),
    "mask": (MASK, "<mask>"),
    "end": (END_OF_TEXT, "</s>", SEP),
}
KNOWN_NAMES = tuple(dict.fromkeys(name for names in ROLE_NAMES.values() for name in names))


@dataclass(frozen=True)
class SpecialIds:
    """The id of each role, None if there is none; `ids` holds every special id."""

    pad: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    end: int | None = None
    ids: tuple[int, ...] = ()

    def require(self, *roles: str) -> tuple[int, ...]:
        """Return the ids of `roles`, in order; raises DataError for a role without a token."""
        ids: list[int] = []
        for role in roles:
            value = getattr(self, role)
            if value is None:
                raise DataError(
                    f"tokenizer: the vocabulary has no special token for {role!r} (looked for "
                    f"{', '.join(ROLE_NAMES[role])}); choose a tokenizer that has one, or add it "
                    "to added_tokens of its tokenizer.json with special: true"
                )
            ids.append(value)
        return tuple(ids)


@dataclass(frozen=True)
class TokenisedText:
    """The ids of documents. Sentence s is `ids[starts[s]:starts[s + 1]]`, document d the sentences
    `first_sentence[d]` to `first_sentence[d + 1]`; none is empty."""

    ids: Ids  # (N,)
    starts: NDArray[np.int64]  # (S + 1,)
    first_sentence: NDArray[np.int64]  # (D + 1,)
    documents: NDArray[np.uint64]  # (D,) the hash of each
    unit_starts: NDArray[np.bool_] | None = None  # (N,) where a mask unit begins
    first_document: int = 0  # the number of the first of them in its split
    labels: NDArray[np.uint16] | None = None  # (D,) the number of each one's label
