"""Text generation from prompts taken from held-out text.

Prompts are not hand-picked: a counter-based generator orders the held-out blocks, and the longest
stretch of one document in a block yields a prompt; blocks without a long enough stretch are
skipped. Each prompt is continued greedily and by sampling at a temperature. Sampling is
counter-based too, so rebuilding a page reproduces its text.

The prefix is recomputed for every token: a page needs a few dozen tokens within one window, so a
cache is not worth it. N rows, T sequence, V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from tokenizers import Tokenizer

from rungwise.core.randomness import uniform
from rungwise.evaluation.page import held_out
from rungwise.evaluation.page.spelling import Spelling
from rungwise.instances.reader import InstanceReader
from rungwise.models.trained.capabilities import NextTokenLogits

TEMPERATURE = 0.8
LONGEST_PROMPT, MOST_NEW = 24, 40  # tokens
_SHORTEST_STRETCH = 8
_BLOCK, _TOKEN = 22, 23  # streams of the generator


@dataclass(frozen=True)
class Prompt:
    """A prompt; `truth` is the text that follows it in the original."""

    instance: int
    ids: tuple[int, ...]
    room: int  # new tokens that fit into the model's window
    text: str
    truth: str


@dataclass(frozen=True)
class Continuation:
    prompt: Prompt
    greedy: str
    sampled: str


def choose_prompts(
    reader: InstanceReader, tokenizer: Tokenizer, number: int, seed: int
) -> list[Prompt]:
    """Choose up to `number` prompts; fewer if the text lacks long stretches."""
    spelling, end = Spelling.of(tokenizer), reader.vocabulary.end
    window = reader.config.length
    prompts: list[Prompt] = []
    for instance in held_out.draw_instances(seed, _BLOCK, len(reader)):
        if len(prompts) == number:
            break
        row = reader.rows(np.array([instance]))
        stretch = _longest_stretch(row.ids[0, : row.lengths[0]].tolist(), end)
        while len(stretch) > 1 and stretch[0] != end and spelling.continues(stretch[0]):
            stretch = stretch[1:]  # a block can begin within a word
        if len(stretch) < _SHORTEST_STRETCH:
            continue
        length = _prompt_length(stretch, spelling)
        room = min(MOST_NEW, window - length)
        prompt, truth = stretch[:length], stretch[length : length + room]
        text = _text(tokenizer, prompt, end).lstrip()
        prompts.append(
            Prompt(instance, tuple(prompt), room, text, _added_text(tokenizer, prompt, truth, end))
        )
    return prompts


@torch.no_grad()
def continue_prompts(
    model: NextTokenLogits, tokenizer: Tokenizer, prompts: Sequence[Prompt], end: int, seed: int
) -> list[Continuation]:
    """Continue each prompt both ways, until the model ends the document."""
    if not prompts:
        return []
    greedy, sampled = (
        _generate(model, prompts, end, seed, temperature) for temperature in (0.0, TEMPERATURE)
    )
    return [
        Continuation(prompt, *(_added_text(tokenizer, prompt.ids, new, end) for new in both))
        for prompt, *both in zip(prompts, greedy, sampled, strict=True)
    ]


def _generate(
    model: NextTokenLogits, prompts: Sequence[Prompt], end: int, seed: int, temperature: float
) -> list[list[int]]:
    """New tokens per prompt, including the end symbol; temperature 0 is greedy."""
    rows = [list(prompt.ids) for prompt in prompts]
    open_rows = [row for row, prompt in enumerate(prompts) if prompt.room > 0]
    while open_rows:
        # Padding at the end of a row is invisible to the positions before it.
        longest = max(len(rows[row]) for row in open_rows)
        ids_NT = torch.tensor([rows[r] + [0] * (longest - len(rows[r])) for r in open_rows])
        last_N = torch.tensor([len(rows[row]) - 1 for row in open_rows])
        logits_NV = model.next_logits(ids_NT)[torch.arange(len(open_rows)), last_N].double()
        if temperature:
            below_NV = torch.softmax(logits_NV / temperature, dim=-1).cumsum(dim=-1)
            draw_N = uniform(
                seed, _TOKEN, np.array([prompts[row].instance for row in open_rows]), last_N.numpy()
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
            if rows[row][-1] != end and len(rows[row]) < len(prompts[row].ids) + prompts[row].room
        ]
    return [row[len(prompt.ids) :] for row, prompt in zip(rows, prompts, strict=True)]


def _longest_stretch(ids: list[int], end: int) -> list[int]:
    """The longest run of one document, including the symbol that opens it, if present."""
    starts = [0, *(place for place, token in enumerate(ids) if token == end and place), len(ids)]
    begin, stop = max(pairwise(starts), key=lambda bounds: bounds[1] - bounds[0])
    return ids[begin:stop]


def _prompt_length(stretch: list[int], spelling: Spelling) -> int:
    """The prompt's length: at most half of the stretch, if possible up to a word boundary."""
    most = min(LONGEST_PROMPT, len(stretch) // 2)
    for length in range(most, most // 2, -1):
        if not spelling.continues(stretch[length]):
            return length
    return most


def _text(tokenizer: Tokenizer, ids: Sequence[int], end: int) -> str:
    return tokenizer.decode([t for t in ids if t != end], skip_special_tokens=False)


def _added_text(tokenizer: Tokenizer, prompt: Sequence[int], new: Sequence[int], end: int) -> str:
    """The text that `new` adds to the prompt, whitespace included."""
    before = _text(tokenizer, prompt, end)
    whole = _text(tokenizer, [*prompt, *new], end)
    if whole.startswith(before):
        return whole[len(before) :]
    # The prompt ended within a multi-byte character, or decoding moved a space.
    return " " + _text(tokenizer, new, end)
