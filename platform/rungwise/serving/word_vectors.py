"""Token vectors in the two formats of word2vec.c, which gensim and others load.

    vectors.txt    `V D`, then a token and its numbers per line
    vectors.bin    the same with numbers as little-endian float32

Tokens are spelled as in the vocabulary, white space as ␣. Special tokens and all-zero vectors are
left out.

Shapes: V tokens written, D vector size.
"""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from rungwise.models.trained.capabilities import WordVectors
from rungwise.tokenizer import special_ids

TEXT, BINARY = FILES = ("vectors.txt", "vectors.bin")


def export_vectors(model: WordVectors, tokenizer: Tokenizer, folder: Path) -> None:
    """Write both files."""
    special = set(special_ids(tokenizer).ids)
    vectors_VD = model.vectors(range(model.vocab_size))
    tokens = [t for t in np.flatnonzero(vectors_VD.any(axis=1)).tolist() if t not in special]
    header = f"{len(tokens)} {vectors_VD.shape[1]}\n".encode()
    with (folder / TEXT).open("wb") as text, (folder / BINARY).open("wb") as binary:
        text.write(header)
        binary.write(header)
        for token in tokens:
            spelling = tokenizer.id_to_token(token) or ""
            name = "".join("␣" if sign.isspace() else sign for sign in spelling)
            numbers = " ".join(f"{value:.9g}" for value in vectors_VD[token].tolist())
            text.write(f"{name} {numbers}\n".encode())
            binary.write(f"{name} ".encode() + vectors_VD[token].astype("<f4").tobytes() + b"\n")
