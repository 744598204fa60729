"""Fill in the blank: words of held-out text hidden from the pretrained model, and its guesses.

Nothing is picked by hand or by how well the model does: a counter-based generator orders the first
held-out instances and draws one whole word of segment A in each; an instance without one is passed
over. The model reads the whole instance with that one token replaced by [MASK].

B blanks, T sequence, V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from rungwise.artifact import Artifact
from rungwise.instances.masked_reader import MaskedReader
from rungwise.instances.randomness import bits
from rungwise.models.bert import BertConfig, BertForPretraining
from rungwise.report.held_out import MOST_INSTANCES, originals, rows
from rungwise.report.specimen import token_text
from rungwise.training.checkpoint import MODEL, load_tensors
from rungwise.training.loop import PretrainConfig

TOP = 5
MINIMUM_LETTERS = 3  # of an English word; other scripts have words of one sign
_INSTANCE, _WORD = 11, 12  # streams of the generator
_SHOWN_TOKENS = 16  # on either side of the blank


@dataclass(frozen=True)
class Blank:
    """A hidden word: the ids the model reads (padded), and the text that is shown around it."""

    instance: int
    position: int
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    length: int
    answer_id: int
    answer: str
    before: str
    after: str


@dataclass(frozen=True)
class Guess:
    text: str
    probability: float
    right: bool


@dataclass(frozen=True)
class Filled:
    """A blank with the model's best guesses; `rank` of the right word counts from 1."""

    blank: Blank
    guesses: tuple[Guess, ...]
    rank: int
    probability: float


def choose(
    reader: MaskedReader, tokenizer: Tokenizer, kind: str, number: int, seed: int
) -> list[Blank]:
    """`number` blanks, or fewer if the text has not so many whole words."""
    count = min(MOST_INSTANCES, len(reader))
    order = np.argsort(bits(seed, _INSTANCE, np.arange(count)), kind="stable")
    blanks: list[Blank] = []
    for instance in order.tolist():
        if len(blanks) == number:
            break
        batch = rows(reader, np.array([instance]), seed)
        ids = originals(batch)[0]
        length = int(batch.lengths[0])
        a_end = length - int(batch.segments[0, :length].sum()) - 1  # of the [SEP] behind A
        pieces = [str(tokenizer.id_to_token(int(token))) for token in ids[:a_end]]
        words = [
            position
            for position in range(1, a_end)
            if ids[position] not in reader.vocabulary.special
            and _is_word(tokenizer, kind, int(ids[position]))
            and not (position + 1 < a_end and _continues(pieces[position + 1], kind))
        ]
        if words:
            position = words[int(bits(seed, _WORD, instance) % np.uint64(len(words)))]
            segments = tuple(batch.segments[0].tolist())
            blanks.append(
                _blank(
                    tokenizer,
                    kind,
                    instance,
                    position,
                    ids,
                    segments,
                    length,
                    pieces,
                    reader.vocabulary.mask,
                )
            )
    return blanks


def fill(model: BertForPretraining, tokenizer: Tokenizer, blanks: Sequence[Blank]) -> list[Filled]:
    """The model's best guesses for each blank, with their probabilities."""
    if not blanks:
        return []
    model.eval()
    with torch.no_grad():
        logits_BV = model(
            torch.tensor([blank.ids for blank in blanks]),
            torch.tensor([blank.segments for blank in blanks]),
            torch.tensor([blank.length for blank in blanks]),
            torch.tensor([[blank.position] for blank in blanks]),
        ).mlm[:, 0]
    probability_BV = torch.softmax(logits_BV.float(), dim=-1)
    found = []
    for blank, probability_V in zip(blanks, probability_BV, strict=True):
        right = float(probability_V[blank.answer_id])
        best = torch.topk(probability_V, min(TOP, len(probability_V)))
        guesses = tuple(
            Guess(token_text(tokenizer, token), value, token == blank.answer_id)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
        rank = 1 + int((probability_V > probability_V[blank.answer_id]).sum())
        found.append(Filled(blank, guesses, rank, right))
    return found


def load_model(pretrain: Artifact) -> BertForPretraining:
    """The pretrained model of an artifact, with the heads it was trained with."""
    settings = PretrainConfig.model_validate(pretrain.record["config"]["pretrain"])
    model = BertForPretraining(
        BertConfig.model_validate(pretrain.summary["model"]),
        pretrain.summary["vocab_size"],
        next_sentence=settings.objective.next_sentence,
    )
    model.load_state_dict(load_tensors(pretrain.folder, MODEL))
    return model


def _blank(
    tokenizer: Tokenizer,
    kind: str,
    instance: int,
    position: int,
    ids: np.ndarray,
    segments: tuple[int, ...],
    length: int,
    pieces: list[str],
    mask_id: int,
) -> Blank:
    begin, end = max(1, position - _SHOWN_TOKENS), min(len(pieces), position + 1 + _SHOWN_TOKENS)
    while begin > 1 and _continues(pieces[begin], kind):
        begin -= 1
    while end < len(pieces) and _continues(pieces[end], kind):
        end += 1
    before = tokenizer.decode(ids[begin:position].tolist()).strip()
    after = tokenizer.decode(ids[position + 1 : end].tolist()).strip()
    prompt = ids.copy()
    prompt[position] = mask_id
    return Blank(
        instance=instance,
        position=position,
        ids=tuple(prompt.tolist()),
        segments=segments,
        length=length,
        answer_id=int(ids[position]),
        answer=tokenizer.decode([int(ids[position])]).strip(),
        before=f"… {before}" if begin > 1 else before,
        after=f"{after} …" if end < len(pieces) else after,
    )


def _is_word(tokenizer: Tokenizer, kind: str, token: int) -> bool:
    """True if the token begins a word and is made of letters alone."""
    if kind == "byte_bpe" and not str(tokenizer.id_to_token(token)).startswith("Ġ"):
        return False
    # A WordPiece inside a word keeps its ##, half a character becomes a mark: neither is letters.
    word = tokenizer.decode([token]).strip()
    return word.isalpha() and len(word) >= (MINIMUM_LETTERS if word.isascii() else 1)


def _continues(piece: str, kind: str) -> bool:
    """True if the piece goes on with the word before it."""
    if kind == "wordpiece":
        return piece.startswith("##")
    return not piece.startswith("Ġ") and piece[:1].isalnum()
