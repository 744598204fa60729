"""Token vectors in the two formats of word2vec.c, which gensim and others load.

    vectors.txt    `V D`, then a token and its numbers per line
    vectors.bin    the same with numbers as little-endian float32

Tokens are spelled as in the vocabulary, white space as ␣. Special tokens and all-zero vectors are
left out.

Shapes: V tokens written, D vector size.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from rungwise.models.trained.capabilities import WordVectors
from rungwise.tokenizer import special_ids

TEXT, BINARY = FILES = ("vectors.txt", "vectors.bin")


def export(model: WordVectors, tokenizer: Tokenizer, folder: Path) -> None:
    """Write both files."""
    special = set(special_ids(tokenizer).ids)
    vectors_VD = model.vectors(range(model.vocab_size))
    kept = [t for t in np.flatnonzero(vectors_VD.any(axis=1)).tolist() if t not in special]
    text, binary = io.StringIO(), io.BytesIO()
    head = f"{len(kept)} {vectors_VD.shape[1]}\n"
    text.write(head)
    binary.write(head.encode())
    for token in kept:
        name = _spelled(tokenizer.id_to_token(token) or "")
        text.write(f"{name} {' '.join(f'{value:.9g}' for value in vectors_VD[token].tolist())}\n")
        binary.write(f"{name} ".encode() + vectors_VD[token].astype("<f4").tobytes() + b"\n")
    (folder / TEXT).write_text(text.getvalue(), encoding="utf-8")
    (folder / BINARY).write_bytes(binary.getvalue())


def _spelled(token: str) -> str:
    return "".join("␣" if sign.isspace() else sign for sign in token)
