"""Text generation: a left-to-right model draws one token after another.

N rows, T sequence, V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rungwise.core.errors import UserError
from rungwise.core.randomness import uniform
from rungwise.models.trained.capabilities import NextTokenLogits

_TOKEN = 23  # stream of the counter-based generator


@dataclass(frozen=True)
class Sampling:
    """The way new tokens are chosen: at most `length` of them; among the `top_k` likeliest (Fan et
    al. 2018, arXiv:1805.04833), 0 for all; with logits divided by `temperature`, where 0 takes the
    likeliest token. The same `seed` gives the same text."""

    length: int = 40
    temperature: float = 0.8
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < 2**31:
                raise UserError(f"{name}: expected 0 or more, found {value}")


@torch.no_grad()
def generate(
    model: NextTokenLogits,
    prompts: Sequence[Sequence[int]],
    end: int,
    sampling: Sampling,
    streams: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt, the end symbol included. A row that outgrows the window
    is read from its last tokens, anew for every token: rows are short. `streams` are the numbers by
    which rows draw (default: their places)."""
    rows = [list(prompt) for prompt in prompts]
    streams = range(len(rows)) if streams is None else streams
    window = getattr(model, "max_length", None)
    open_rows = [*range(len(rows))] if sampling.length else []
    while open_rows:
        tails = [rows[row] if window is None else rows[row][-window:] for row in open_rows]
        # Padding at the end of a row is invisible to the positions before it.
        longest = max(map(len, tails))
        ids_NT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in tails])
        last_N = torch.tensor([len(ids) - 1 for ids in tails])
        logits_NV = model.next_logits(ids_NT)[torch.arange(len(tails)), last_N].double()
        if sampling.top_k:
            least_N = logits_NV.topk(min(sampling.top_k, logits_NV.shape[1])).values[:, -1:]
            logits_NV = logits_NV.masked_fill(logits_NV < least_N, -torch.inf)
        if sampling.temperature:
            below_NV = torch.softmax(logits_NV / sampling.temperature, dim=-1).cumsum(dim=-1)
            draw_N = uniform(
                sampling.seed,
                _TOKEN,
                np.array([streams[row] for row in open_rows]),
                np.array([len(rows[row]) - 1 for row in open_rows]),
            )
            # Rounding leaves the sum beside 1; scaling by it keeps every draw within range.
            draw_N1 = torch.from_numpy(draw_N)[:, None] * below_NV[:, -1:]
            next_N = torch.searchsorted(below_NV, draw_N1, right=True)[:, 0]
        else:
            next_N = logits_NV.argmax(dim=-1)
        for row, token in zip(open_rows, next_N.tolist(), strict=True):
            rows[row].append(token)
        open_rows = [
            row
            for row in open_rows
            if rows[row][-1] != end and len(rows[row]) < len(prompts[row]) + sampling.length
        ]
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]
