"""A pretrained model's answers to a text: a gap filled in, or the text continued.

V vocabulary
"""

import itertools
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.evaluation.examples import added_text, token_text
from rungwise.models.trained.capabilities import BlankLogits, NextTokenLogits
from rungwise.models.trained.generation import Sampling, generate
from rungwise.models.trained.language_models import MaskedModel
from rungwise.tasks.kinds.items import token_ids
from rungwise.tokenizer import special_ids

GAP = "___"
_BEST = 5


@torch.no_grad()
def fill_gap(model: BlankLogits, tokenizer: Tokenizer, text: str) -> dict[str, float]:
    """Return the likeliest tokens for the gap of a text, with their probabilities. Raises DataError
    unless it has one gap and fits into the model's window."""
    before, gap, after = text.partition(GAP)
    if not gap or GAP in after:
        raise DataError(f"expected one gap, written {GAP}, found {text!r}; this model fills gaps")
    special = special_ids(tokenizer)
    left, right = token_ids(tokenizer, [before.strip(), after.strip()])
    if isinstance(model, MaskedModel):
        first, hidden, last = special.require("cls", "mask", "sep")
    else:
        first, last = special.require("end", "end")
        # Any token that begins no document; a two-direction model never sees the one in the gap.
        hidden = next(token for token in itertools.count() if token not in special.ids)
    longest = getattr(model, "max_length", None)
    row = [first, *left, hidden, *right, last]
    if longest is not None and len(row) > longest:
        raise DataError(
            f"the text has {len(row)} tokens, and the model reads {longest}; shorten it"
        )
    logits_1V = model.blank_logits(
        torch.tensor([row]),
        torch.zeros(1, len(row), dtype=torch.long),
        torch.tensor([len(row)]),
        torch.tensor([1 + len(left)]),
    )
    best = torch.softmax(logits_1V[0].float(), dim=-1).topk(_BEST)
    tokens = [token_text(tokenizer, token) for token in best.indices.tolist()]
    return dict(zip(tokens, best.values.tolist(), strict=True))


def continue_texts(
    model: NextTokenLogits, tokenizer: Tokenizer, texts: Sequence[str], sampling: Sampling
) -> list[str]:
    """Return what the model adds to each text, alone or with others the same."""
    (end,) = special_ids(tokenizer).require("end")
    rows = [[end, *ids] for ids in token_ids(tokenizer, texts)]
    added = generate(model, rows, end, sampling, streams=[0] * len(rows))
    return [
        added_text(tokenizer, row, new, end).rstrip() for row, new in zip(rows, added, strict=True)
    ]
