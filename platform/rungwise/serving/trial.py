"""Try a model on typed text: one line of answer, for people and for scripts.

    fine-tuned              its answer, with probabilities where there are some
    reads both sides        a text with a gap, ___: the likeliest tokens there
    reads from the left     a beginning: how it goes on, drawn from its probabilities, always alike
    table of word vectors   a word: the nearest words
    n-gram                  a text: its perplexity

A pretrained model with a vector per token can also be asked for the words nearest to a word. What
each reads is in `Trial.hint`; what it cannot answer is refused with it.
"""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.evaluation.examples import (
    MOST_NEW,
    Neighbourhood,
    Prompt,
    continue_prompts,
    token_text,
)
from rungwise.models.trained.capabilities import (
    BlankLogits,
    LanguageModel,
    NextTokenLogits,
    WordVectors,
)
from rungwise.models.trained.language_models import MaskedModel
from rungwise.serving.predictor import Model, Predictor
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.items import token_ids
from rungwise.tasks.kinds.kind import Record
from rungwise.tokenizer import special_ids

GAP = "___"
_BEST = 5


@dataclass(frozen=True)
class Trial:
    """A model to try. `fields` are the names of the texts that `answer` takes."""

    hint: str
    fields: tuple[str, ...]
    answer: Callable[..., str]


def make_trial(predictor: Model) -> Trial:
    """Return what to type for a model, and what it answers. Raises DataError for a model that can
    only be fine-tuned."""
    if isinstance(predictor, Predictor):
        return _try_task(predictor)
    return _try_pretrained(predictor.model, predictor.tokenizer)


def _try_pretrained(model: object, tokenizer: Tokenizer) -> Trial:
    match model:
        case BlankLogits():
            hint = f"a text with a gap: the {GAP} of France"
            return Trial(hint, ("text",), lambda text: _fill_gap(model, tokenizer, text))
        case NextTokenLogits():
            hint = "the beginning of a text: it goes on"
            return Trial(hint, ("text",), lambda text: _continue_text(model, tokenizer, text))
        case LanguageModel():
            hint = "a text: how likely is it?"
            return Trial(hint, ("text",), lambda text: _rate_text(model, tokenizer, text))
        case WordVectors():
            return _try_neighbours(Neighbourhood(model, tokenizer), _BEST)
    raise DataError("this model predicts no tokens and has no vectors of words; fine-tune it first")


def try_nearest(predictor: Model, count: int) -> Trial:
    """Return a trial that answers a word with the `count` nearest words. Raises DataError for a
    model without a vector per token."""
    if isinstance(predictor, Predictor) or not isinstance(predictor.model, WordVectors):
        raise DataError("this model has no vector of each token (WordVectors); leave out --nearest")
    return _try_neighbours(Neighbourhood(predictor.model, predictor.tokenizer), count)


def _try_neighbours(near: Neighbourhood, count: int) -> Trial:
    def answer(word: str) -> str:
        nearest = near.nearest(word, count)
        words = "  ".join(f"{each.word} {each.cosine:.3f}" for each in nearest)
        pieces = near.pieces(word)
        # A word that the vocabulary lacks has the mean vector of its pieces.
        return f"{' '.join(pieces)}: {words}" if len(pieces) > 1 else words

    return Trial("a word: its neighbours", ("word",), answer)


def _try_task(predictor: Predictor) -> Trial:
    kind = task_kind(predictor.info)

    def answer(*texts: str) -> str:
        values = dict(zip(kind.fields, texts, strict=True))
        (prediction,) = predictor([kind.parse(Record(values, "the text", kind.columns))])
        return _describe(prediction)

    return Trial(kind.goal, kind.fields, answer)


def _describe(prediction: dict[str, Any]) -> str:
    """One line: the answer, and its probabilities from high to low."""
    shares = prediction.get("probabilities")
    if isinstance(shares, dict):
        best = sorted(shares.items(), key=lambda item: -item[1])[:_BEST]
        return _join(best)
    values = [value for name, value in prediction.items() if name != "probabilities"]
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return "  ".join(texts)


def _join(shares: Sequence[tuple[str, float]]) -> str:
    return "  ".join(f"{name} {share:.1%}" for name, share in shares)


@torch.no_grad()
def _fill_gap(model: BlankLogits, tokenizer: Tokenizer, text: str) -> str:
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
    return _join(list(zip(tokens, best.values.tolist(), strict=True)))


def _continue_text(model: NextTokenLogits, tokenizer: Tokenizer, text: str) -> str:
    (end,) = special_ids(tokenizer).require("end")
    ids = [end, *token_ids(tokenizer, [text])[0]]
    longest = getattr(model, "max_length", None) or len(ids) + MOST_NEW
    if len(ids) >= longest:
        raise DataError(
            f"the text has {len(ids)} tokens, and the model reads {longest}; shorten it"
        )
    prompt = Prompt(0, tuple(ids), min(MOST_NEW, longest - len(ids)), text, "")
    (continuation,) = continue_prompts(model, tokenizer, [prompt], end, seed=0)
    return text + continuation.sampled.rstrip()


def _rate_text(model: LanguageModel, tokenizer: Tokenizer, text: str) -> str:
    (end,) = special_ids(tokenizer).require("end")
    (row,) = model.log_probabilities([[*token_ids(tokenizer, [text])[0], end]])
    return f"perplexity {math.exp(-row.mean()):,.1f} over {len(row)} tokens, its end included"
