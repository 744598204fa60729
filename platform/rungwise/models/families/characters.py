"""Token vectors from spelling: the character CNN of ELMo (Peters et al. 2018, arXiv:1802.05365,
after Kim et al. 2016, arXiv:1508.06615, and Jozefowicz et al. 2016, arXiv:1602.02410).

    bytes of a token ──> embedding (N, C, K) ──> the filters of each width, max over positions
        ──> activation ──> (N, F) ──> highways ──> projection ──> (N, P)

A character is one of 261 symbols: the 256 bytes and the five below. A token begins and ends with a
mark and is padded to C symbols. The CNN reads the padding like any other symbol, as does the
released biLM (allenai/bilm-tf). The spelling of each token is a buffer beside the weights, filled
once before training (`spell`), so using the weights needs no tokenizer.

Vectors do not depend on context, so each distinct token of a batch goes through the CNN once.

Shapes: B batch, T sequence, V vocabulary, N tokens, C symbols of a token, K size of a symbol,
F filters, P output.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
NUM_SYMBOLS = 261
Activation = Literal["relu", "tanh"]

# The delimiter of two texts ends one and begins the next.
_BETWEEN = (END_TEXT, BEGIN_TEXT)
_MARKS = ((BEGIN_TEXT,), _BETWEEN, (END_TEXT,))  # start, delimiter, extract (encoders.py)


class CharacterEncoder(nn.Module):
    """Replaces a token embedding. `filters` are pairs of width and number. The table `characters`
    (V, C) is all padding until `spell`. The initial weights are drawn as in the released biLM."""

    def __init__(
        self,
        vocab_size: int,
        output_size: int,
        filters: Sequence[tuple[int, int]],
        character_size: int,
        max_characters: int,
        num_highways: int,
        activation: Activation,
    ) -> None:
        super().__init__()
        K, F = character_size, sum(number for _, number in filters)
        # int32, because gloo cannot send 16 bits.
        table_VC = torch.full((vocab_size, max_characters), PADDING, dtype=torch.int32)
        self.register_buffer("characters", table_VC)
        self.embedding = nn.Embedding(NUM_SYMBOLS, K)
        convolutions = [nn.Conv1d(K, number, width) for width, number in filters]
        self.convolutions = nn.ModuleList(convolutions)
        self.activation = torch.relu if activation == "relu" else torch.tanh
        # The first half is the new value, the second its gate.
        highways = [nn.Linear(F, 2 * F) for _ in range(num_highways)]
        self.highways = nn.ModuleList(highways)
        self.projection = nn.Linear(F, output_size)
        nn.init.uniform_(self.embedding.weight, -1.0, 1.0)
        for convolution, (width, _) in zip(convolutions, filters, strict=True):
            if activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05)
            else:
                nn.init.normal_(convolution.weight, std=1 / math.sqrt(width * K))
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
        for linear in (*highways, self.projection):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(F))
            nn.init.zeros_(linear.bias)
        for highway in highways:
            nn.init.constant_(highway.bias[F:], -2.0)  # gates begin almost closed

    characters: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors (..., P) of ids of any shape."""
        distinct_N, place = ids.unique(return_inverse=True)
        return functional.embedding(place, self.vectors(self.characters[distinct_N]))

    def vectors(self, characters_NC: Tensor) -> Tensor:
        """Return the vectors (N, P) of tokens with this spelling."""
        x_NKC = self.embedding(characters_NC).transpose(1, 2)  # (N, C, K) -> (N, K, C)
        most = [convolution(x_NKC).amax(dim=2) for convolution in self.convolutions]
        x_NF = self.activation(torch.cat(most, dim=1))
        for highway in self.highways:
            new_NF, gate_NF = highway(x_NF).chunk(2, dim=1)
            x_NF = torch.lerp(x_NF, new_NF.relu(), gate_NF.sigmoid())
        return self.projection(x_NF)

    def spell(self, tokens: Sequence[bytes], end: int) -> None:
        """Store the bytes of each token; `end` is the token between documents."""
        rows = [_BETWEEN if index == end else tuple(token) for index, token in enumerate(tokens)]
        self._write(0, rows)

    def spell_marks(self, count: int) -> None:
        """Spell the last `count` (0 or 3) tokens: the marks that begin, separate and end texts."""
        if count:
            self._write(len(self.characters) - count, _MARKS[:count])

    @torch.no_grad()
    def _write(self, first: int, rows: Sequence[Sequence[int]]) -> None:
        C = self.characters.shape[1]
        words = [(BEGIN_WORD, *row[: C - 2], END_WORD) for row in rows]
        filled = [(*row, *[PADDING] * (C - len(row))) for row in words]
        self.characters[first : first + len(rows)] = torch.tensor(filled, dtype=torch.int32)


def products(filters: Sequence[tuple[int, int]], K: int, C: int, highways: int, P: int) -> int:
    """Count the multiplications per token: filters at each position, highways, projection."""
    F = sum(number for _, number in filters)
    at_places = sum(width * K * number * (C - width + 1) for width, number in filters)
    return at_places + highways * 2 * F * F + F * P
