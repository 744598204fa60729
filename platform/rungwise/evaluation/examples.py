"""Examples of a model on held-out text, none of them hand-picked: gaps filled in, beginnings
continued, words with their nearest. Texts that a user types are answered by the same functions.

N words, D size of a vector, V vocabulary
"""

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.summary import read_split
from rungwise.models.trained.capabilities import BlankLogits, NextTokenLogits, WordVectors
from rungwise.models.trained.language_models import MaskedModel, Sampling, generate
from rungwise.tasks.kinds.items import token_ids
from rungwise.tokenizer import ids_after_blank, special_ids
from rungwise.tokenizer.encoder import word_starts

MINIMUM_LETTERS = 3  # of a word in ASCII; words of other scripts can be one sign
TOP = 5  # guesses for a gap
TEMPERATURE = 0.8
LONGEST_PROMPT, MOST_NEW = 24, 40  # tokens
_SHORTEST_TEXT, _LONGEST_TEXT = 8, 64  # tokens
_MOST_TEXTS = 4096  # paragraphs, so that a page does not grow with the corpus
_NEAREST = 6  # neighbours shown per word
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "Ġ": "␣", "Ċ": "⏎"})
_PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class FilledGap:
    """A hidden word between two texts, with the likeliest tokens. `right` is the token of the
    answer, and its `rank` counts from 1."""

    before: str
    after: str
    answer: str
    guesses: Mapping[str, float]
    right: str
    rank: int
    probability: float


class Continuation(NamedTuple):
    """A beginning, what the model adds by drawing tokens, and what follows it in the original."""

    prompt: str
    added: str
    truth: str


class Neighbour(NamedTuple):
    word: str
    cosine: float


def draw_texts(corpus: Artifact, seed: int) -> Iterator[str]:
    """Yield held-out paragraphs in random order by the seed."""
    paragraphs = (
        " ".join(sentences)
        for document in read_split(corpus, "validation")
        for sentences in document.paragraphs()
    )
    texts = [*itertools.islice(paragraphs, _MOST_TEXTS)]
    for place in np.random.default_rng(seed).permutation(len(texts)).tolist():
        yield texts[place]


def _is_word(text: str) -> bool:
    return text.isalpha() and len(text) >= (MINIMUM_LETTERS if text.isascii() else 1)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as spelled in the vocabulary, with visible whitespace; bytes are decoded if they
    form whole characters."""
    text = tokenizer.id_to_token(token)
    assert text is not None, f"no token {token}"
    if type(tokenizer.decoder).__name__ == "ByteLevel":
        decoded = tokenizer.decode([token], skip_special_tokens=False)
        text = text if _PARTIAL_CHARACTER in decoded else decoded
    return text.translate(_BLANKS)


def fill_gaps(
    model: BlankLogits, tokenizer: Tokenizer, texts: Iterator[str], number: int, seed: int
) -> list[FilledGap]:
    """Hide a whole word of each of `number` texts that have one, and let the model guess it."""
    special, rng = {*special_ids(tokenizer).ids}, np.random.default_rng(seed)
    longest = min(_LONGEST_TEXT, (getattr(model, "max_length", None) or _LONGEST_TEXT) - 2)
    filled: list[FilledGap] = []
    for text in texts:
        if len(filled) == number:
            break
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids[:longest], encoding.offsets[:longest]
        starts = [*word_starts(encoding).tolist(), True]
        places = [
            place
            for place, (first, end) in enumerate(offsets)
            if starts[place] and starts[place + 1] and ids[place] not in special
            if _is_word(text[first:end].strip())
        ]
        if not places:
            continue
        place = places[int(rng.integers(len(places)))]
        shares_V = rate_gap(model, tokenizer, ids[:place], ids[place + 1 :])
        (first, end), right = offsets[place], float(shares_V[ids[place]])
        gap = FilledGap(
            before=text[:first],
            after=text[end : offsets[-1][1]],
            answer=text[first:end].strip(),
            guesses=list_guesses(tokenizer, shares_V),
            right=token_text(tokenizer, ids[place]),
            rank=1 + int((shares_V > shares_V[ids[place]]).sum()),
            probability=right,
        )
        filled.append(gap)
    return filled


@torch.no_grad()
def rate_gap(
    model: BlankLogits, tokenizer: Tokenizer, left: Sequence[int], right: Sequence[int]
) -> torch.Tensor:
    """The probability (V,) of each token between two texts. Raises DataError if they are longer
    than the model reads."""
    special = special_ids(tokenizer)
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
    segments = torch.zeros(1, len(row), dtype=torch.long)
    length, place = torch.tensor([len(row)]), torch.tensor([1 + len(left)])
    logits_1V = model.blank_logits(torch.tensor([row]), segments, length, place)
    return torch.softmax(logits_1V[0].float(), dim=-1)


def list_guesses(tokenizer: Tokenizer, shares_V: torch.Tensor) -> dict[str, float]:
    """The likeliest tokens, the likeliest first."""
    best = shares_V.topk(min(TOP, len(shares_V)))
    tokens = [token_text(tokenizer, token) for token in best.indices.tolist()]
    return dict(zip(tokens, best.values.tolist(), strict=True))


def continue_beginnings(
    model: NextTokenLogits, tokenizer: Tokenizer, texts: Iterator[str], number: int, seed: int
) -> list[Continuation]:
    """Continue the first half, up to the end of a word, of each of `number` texts."""
    prompts: list[tuple[str, str]] = []
    for text in texts:
        if len(prompts) == number:
            break
        encoding = tokenizer.encode(text, add_special_tokens=False)
        offsets, starts = encoding.offsets, word_starts(encoding).tolist()
        if len(offsets) < _SHORTEST_TEXT:
            continue
        most = min(LONGEST_PROMPT, len(offsets) // 2)
        length = next((n for n in range(most, most // 2, -1) if starts[n]), most)
        prompt = text[: offsets[length][0]].rstrip()
        last = min(len(offsets), length + MOST_NEW) - 1
        prompts.append((prompt, text[len(prompt) : offsets[last][1]]))
    sampling = Sampling(length=MOST_NEW, temperature=TEMPERATURE, seed=seed)
    added = continue_texts(model, tokenizer, [prompt for prompt, _ in prompts], sampling)
    return [
        Continuation(prompt, new, truth)
        for (prompt, truth), new in zip(prompts, added, strict=True)
    ]


def continue_texts(
    model: NextTokenLogits, tokenizer: Tokenizer, texts: Sequence[str], sampling: Sampling
) -> list[str]:
    """Return what the model adds to each text, alone or with others the same."""
    (end,) = special_ids(tokenizer).require("end")
    rows = [[end, *ids] for ids in token_ids(tokenizer, texts)]
    added = generate(model, rows, end, sampling, streams=[0] * len(rows))
    return [
        _added_text(tokenizer, row, new, end).rstrip() for row, new in zip(rows, added, strict=True)
    ]


def _added_text(tokenizer: Tokenizer, prompt: Sequence[int], new: Sequence[int], end: int) -> str:
    """The text that `new` adds to the prompt, whitespace included."""
    before, whole, alone = (
        tokenizer.decode([token for token in ids if token != end], skip_special_tokens=False)
        for ids in (prompt, [*prompt, *new], new)
    )
    # Else the prompt ended within a multi-byte character, or decoding moved a space.
    return whole[len(before) :] if whole.startswith(before) else f" {alone}"


class Neighbourhood:
    """The whole words of a vocabulary that have a vector, compared by cosine."""

    def __init__(self, model: WordVectors, tokenizer: Tokenizer) -> None:
        blank = ""  # by which tokens that begin a word do
        if type(tokenizer.model).__name__ not in ("WordPiece", "WordLevel"):
            blank = "Ġ" if type(tokenizer.decoder).__name__ == "ByteLevel" else "▁"
        words: dict[int, str] = {}
        for token in range(model.vocab_size):
            # No word is a WordPiece inside of one (##), nor a part of a character.
            word = tokenizer.decode([token]).strip()
            if _is_word(word) and (tokenizer.id_to_token(token) or "").startswith(blank):
                words[token] = word
        vectors_ND = model.vectors([*words])
        length_N = np.linalg.norm(vectors_ND, axis=1)
        has_vector = length_N > 0
        self._model, self._tokenizer = model, tokenizer
        self._has_blank = blank == "Ġ"  # written into a word
        self._unit_ND = vectors_ND[has_vector] / length_N[has_vector, None]
        self.by_id = dict(itertools.compress(words.items(), has_vector))
        self.words = [*self.by_id.values()]

    def nearest(self, word: str, count: int) -> list[Neighbour]:
        """The `count` nearest words, nearest first, excluding itself; raises as `vector`."""
        vector_D = self.vector(word)
        cosine_N = self._unit_ND @ (vector_D / np.linalg.norm(vector_D))
        spelling = self._tokenizer.decode(self._ids(word)).strip()
        order = np.argsort(-cosine_N, kind="stable")[: count + 1]
        neighbours = (Neighbour(self.words[place], float(cosine_N[place])) for place in order)
        return [each for each in neighbours if each.word != spelling][:count]

    def pieces(self, word: str) -> list[str]:
        """The tokens of a word, as the vocabulary spells them."""
        return [self._tokenizer.id_to_token(token) or "" for token in self._ids(word)]

    def vector(self, word: str) -> NDArray[np.float32]:
        """The mean vector (D,) of a word's pieces. Raises DataError if there is none."""
        ids = self._ids(word)
        vector_D = self._model.vectors(ids).mean(axis=0) if ids else np.zeros(1, np.float32)
        if special_ids(self._tokenizer).unk in ids or not vector_D.any():
            alike = difflib.get_close_matches(word, self.words, n=5)
            raise DataError(
                f"expected a word that the vocabulary has and that was met often enough to be "
                f"learnt, found {word!r}; spelled alike: {', '.join(alike) or 'none'}"
            )
        return vector_D

    def _ids(self, word: str) -> list[int]:
        if self._has_blank:
            [ids] = ids_after_blank(self._tokenizer, [word])
            return ids
        return self._tokenizer.encode(word, add_special_tokens=False).ids


def draw_neighbours(
    model: WordVectors, tokenizer: Tokenizer, texts: Iterator[str], number: int, seed: int
) -> dict[str, list[Neighbour]]:
    """The neighbours of `number` distinct words, each drawn from a text."""
    near, rng = Neighbourhood(model, tokenizer), np.random.default_rng(seed)
    neighbours: dict[str, list[Neighbour]] = {}
    for text in texts:
        if len(neighbours) == number:
            break
        (ids,) = token_ids(tokenizer, [text])
        if words := [near.by_id[token] for token in ids if token in near.by_id]:
            word = words[int(rng.integers(len(words)))]
            neighbours[word] = near.nearest(word, _NEAREST)
    return neighbours
