"""Choose the fastest encoder of a tokenizer, and verify it on the text at hand.

A package is used only if its ids and word starts equal the reference's on a megabyte of the text
and on 2,000 nasty texts. Otherwise the memo encodes, and the choice says why.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from rungwise.core.configuration.compute import TokenizerBackend
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import read_documents
from rungwise.tokenizer.encoder import (
    EncoderChoice,
    TextEncoder,
    installed_version,
    make_encoder,
)
from rungwise.tokenizer.fast import matching_package
from rungwise.tokenizer.hard_texts import hard_texts
from rungwise.tokenizer.memo import text_bytes

PROOF_BYTES = 1_000_000
_NASTY_TEXTS = 2000
_SAMPLED_FILES = 16
_SHOWN_CHARACTERS = 80


def choose_encoder(
    tokenizer: Tokenizer, wanted: TokenizerBackend, sample: pa.StringArray
) -> EncoderChoice:
    """Return the encoder for `wanted`, verified on the first PROOF_BYTES of `sample`.

    "auto" is the package made for this tokenizer, or the memo. Raises UserError if `wanted` names a
    package that is not installed, ConfigError if it does not support this tokenizer.
    """
    package = matching_package(tokenizer) if wanted == "auto" else wanted
    if package is None or package == "memo" or package == "rust":
        return EncoderChoice(package or "memo")
    proved = EncoderChoice(package, installed_version(package))
    named = f"{package} {proved.version}"
    try:
        text = _first_difference(make_encoder(tokenizer, package), tokenizer, sample)
    except UserError:
        if wanted != "auto":
            raise
        problem = f"{package}, which is several times faster, is not installed; run pip install "
        problem += "'rungwise[fast]'"
    except Exception as error:  # another version of a package may raise anything
        problem = f"{named} fails: {error}"
    else:
        if text is None:
            return proved
        shown = repr(text[:_SHOWN_CHARACTERS])
        problem = f"{named} and the tokenizers library disagree on the text {shown}"
    return EncoderChoice(notice=f"encoding with 'memo': {problem}")


def sample_corpus(corpus: Folder, files: Sequence[str]) -> pa.StringArray:
    """Return about PROOF_BYTES of sentences, from files spread evenly over a corpus.

    Raises DataError for an unreadable file.
    """
    step = max(1, len(files) // _SAMPLED_FILES)
    chosen = files[::step]
    sentences: list[str] = []
    for file in chosen:
        left = PROOF_BYTES // len(chosen)
        for document in read_documents(corpus, file):
            sentences += document.sentences
            left -= sum(map(len, document.sentences))
            if left <= 0:
                break
    return pa.array(sentences, pa.string())


def _first(sample: pa.StringArray) -> pa.StringArray:
    offsets, _ = text_bytes(sample)
    return sample.slice(0, int(np.searchsorted(offsets, PROOF_BYTES, side="right")) - 1)


def _first_difference(
    encoder: TextEncoder, tokenizer: Tokenizer, sample: pa.StringArray
) -> str | None:
    """Return a text that `encoder` and the library encode differently, words included."""
    reference = make_encoder(tokenizer, "rust")
    for texts in (hard_texts(0, _NASTY_TEXTS), _first(sample)):
        right = reference.encode(texts, words=True)
        for words in (False, True):
            encoded = encoder.encode(texts, words)
            wrong = np.flatnonzero(encoded.lengths != right.lengths)
            if len(wrong) == 0:
                differ = encoded.ids != right.ids
                if encoded.word_starts is not None:
                    differ |= encoded.word_starts != right.word_starts
                ends = np.cumsum(right.lengths)
                wrong = np.searchsorted(ends, np.flatnonzero(differ), side="right")
            if len(wrong):
                return texts[int(wrong[0])].as_py()
    return None
