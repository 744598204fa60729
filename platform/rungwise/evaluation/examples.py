"""Examples of a model on held-out text, none of them hand-picked: blanks filled in, prompts
continued, words with their nearest. B blanks, N rows or words, D size of a vector, V vocabulary.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.instances.order import evenly
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary
from rungwise.models.trained.capabilities import BlankLogits, NextTokenLogits, WordVectors
from rungwise.models.trained.generation import Sampling, generate
from rungwise.tokenizer import ids_after_blank, special_ids
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile
from rungwise.training.pretrained import load_model, read_training_config

MINIMUM_LETTERS = 3  # of a word in ASCII; words of other scripts can be one sign
TOP = 5  # guesses for a blank
TEMPERATURE = 0.8
LONGEST_PROMPT, MOST_NEW = 24, 40  # tokens
MOST_INSTANCES = 2048  # per page, so that it does not grow with the corpus
_INSTANCE, _WORD, _BLOCK, _POSITION = 11, 12, 22, 31  # streams of the generator
_ROWS_AT_ONCE = 512
_CONTEXT_TOKENS = 16  # minimum on either side of a blank
_SHORTEST_STRETCH = 8  # that a prompt is taken from
_POSITIONS = 4096  # drawn, enough to meet as many words as a page shows
_NEAREST = 6  # neighbours shown per word
_LINE_BREAK = "Ċ"  # in byte-level BPE, which writes spaces and line breaks as letters
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "Ġ": "␣", "Ċ": "⏎"})
_PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Blank:
    """A hidden word: the (padded) ids that the model reads, and the text shown around it."""

    instance: int
    position: int
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    length: int
    answer_id: int
    answer: str
    before: str
    after: str


class FilledBlank(NamedTuple):
    text: str
    probability: float
    right: bool


@dataclass(frozen=True)
class BlankResult:
    """A blank with the model's best guesses; `rank` of the right word counts from 1."""

    blank: Blank
    guesses: tuple[FilledBlank, ...]
    rank: int
    probability: float


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
    """A prompt continued by the likeliest tokens, and by drawn ones."""

    prompt: Prompt
    greedy: str
    sampled: str


class Neighbour(NamedTuple):
    word: str
    cosine: float


@dataclass(frozen=True)
class Examples:
    """Examples of a model; None or empty for those it does not have. `baseline` is the most
    frequent token, and its share."""

    baseline: tuple[str, float] | None = None
    blanks: tuple[BlankResult, ...] = ()
    continuations: tuple[Continuation, ...] = ()
    neighbours: Mapping[str, Sequence[Neighbour]] = field(default_factory=dict)


def gather_examples(
    pretrain: Artifact,
    instances: Artifact | None,
    tokenizer: Tokenizer,
    blanks: int,
    prompts: int,
    words: int,
    seed: int,
) -> Examples:
    """Draw `blanks`, `prompts` and `words` examples of a pretrained model with `seed`, of those
    kinds that its capabilities allow. Words have neighbours only without instances."""
    config = read_training_config(pretrain)
    if instances is None:
        model = None if config.objective.predicts_text else load_model(pretrain)
        if not isinstance(model, WordVectors):
            return Examples()
        tokens = find_input(pretrain, "tokens")
        return Examples(neighbours=neighbours_of_text(model, tokenizer, tokens, words, seed))
    model = load_model(pretrain, InstancesSummary.of(instances).special)
    reader = InstanceReader(instances, "validation")
    continuations, results = [], []
    if isinstance(model, NextTokenLogits) and not config.objective.masks:
        texts = choose_prompts(reader, tokenizer, prompts, seed)
        continuations = continue_prompts(model, tokenizer, texts, reader.vocabulary.end, seed)
    if isinstance(model, BlankLogits):
        results = fill_blanks(model, tokenizer, choose_blanks(reader, tokenizer, blanks, seed))
    settings = config.pretrain.require_gradient("validation")
    count, baseline = min(settings.validation_instances, MOST_INSTANCES), None
    if frequent := most_frequent_share(reader, count, settings.seed):
        baseline = token_text(tokenizer, frequent[0]), frequent[1]
    return Examples(baseline, tuple(results), tuple(continuations))


def read_as_validated(reader: InstanceReader, instances: NDArray[np.int64], seed: int = 0) -> Any:
    """These instances as validation reads them, with the masks of epoch 0: a batch of the class
    that their kind has."""
    return reader.batch(instances, np.zeros_like(instances), seed)


def most_frequent_share(reader: InstanceReader, count: int, seed: int) -> tuple[int, float] | None:
    """The most frequent target in `count` instances, spread evenly over the split, and its share;
    None for kinds that predict no tokens."""
    total = np.zeros(reader.vocabulary.size, dtype=np.int64)
    sample = evenly(len(reader), min(count, len(reader)))
    for begin in range(0, len(sample), _ROWS_AT_ONCE):
        batch = read_as_validated(reader, sample[begin : begin + _ROWS_AT_ONCE], seed)
        total += np.bincount(batch.predicted_ids(), minlength=len(total))
    return (int(total.argmax()), float(total.max() / total.sum())) if total.any() else None


def _draw_instances(seed: int, stream: int, count: int) -> list[int]:
    """At most MOST_INSTANCES of `count` instances, in random order by the seed."""
    instances = evenly(count, MOST_INSTANCES)
    key = bits(seed, stream, np.arange(len(instances)))
    return instances[np.argsort(key, kind="stable")].tolist()


@dataclass(frozen=True)
class Spelling:
    """A tokenizer and how it marks where words begin: WordPiece marks pieces that continue a word
    (`##ing`), byte-level BPE and Unigram the space before one (`Ġthe`, `▁the`)."""

    tokenizer: Tokenizer
    mark: Literal["##", "Ġ", "▁", "word", "character"]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Spelling":
        """Infer the mark from the model and the decoder, so foreign vocabularies work too."""
        decoder = type(tokenizer.decoder).__name__
        match type(tokenizer.model).__name__:
            case "WordPiece":
                return cls(tokenizer, "##")
            case "WordLevel":
                return cls(tokenizer, "character" if decoder == "Fuse" else "word")
            case _:
                return cls(tokenizer, "Ġ" if decoder == "ByteLevel" else "▁")

    def continues(self, token: int) -> bool:
        """True if the token continues the word before it."""
        piece = self._piece(token)
        match self.mark:
            case "##":
                return piece.startswith("##")
            case "word":
                return False
            case "character":
                return piece.isalnum()
            case _:
                return piece[:1].isalnum() and not piece.startswith((self.mark, _LINE_BREAK))

    def is_word(self, token: int) -> bool:
        """True if the token begins a word and consists of enough letters and nothing else."""
        if self.mark in ("Ġ", "▁") and not self._piece(token).startswith(self.mark):
            return False
        # isalpha() is false for a WordPiece inside a word (##) and for part of a character.
        word = self.tokenizer.decode([token]).strip()
        return word.isalpha() and len(word) >= (MINIMUM_LETTERS if word.isascii() else 1)

    def _piece(self, token: int) -> str:
        piece = self.tokenizer.id_to_token(token)
        assert piece is not None, f"no token {token}"
        return piece


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as spelled in the vocabulary, with visible whitespace; bytes are decoded if they
    form whole characters."""
    text = tokenizer.id_to_token(token)
    assert text is not None, f"no token {token}"
    if type(tokenizer.decoder).__name__ == "ByteLevel":
        decoded = tokenizer.decode([token], skip_special_tokens=False)
        text = text if _PARTIAL_CHARACTER in decoded else decoded
    return text.translate(_BLANKS)


def choose_blanks(
    reader: InstanceReader, tokenizer: Tokenizer, number: int, seed: int
) -> list[Blank]:
    """Choose up to `number` blanks, a whole word from each instance (from segment A if there are
    two) that has one. A masked model reads [MASK] there; a two-direction model reads the block as
    it is, since its prediction at a position never sees the token there."""
    spelling = Spelling.of(tokenizer)
    special = reader.vocabulary.special
    borders = (special.cls, special.sep, special.end)
    blanks: list[Blank] = []
    for instance in _draw_instances(seed, _INSTANCE, len(reader)):
        if len(blanks) == number:
            break
        row = reader.config.whole_row(read_as_validated(reader, np.array([instance]), seed), 0)
        ids, last = row.ids, row.end
        words = [
            position
            for position in range(1, last)
            if ids[position] not in special.ids
            and spelling.is_word(ids[position])
            and not (position + 1 < last and spelling.continues(ids[position + 1]))
        ]
        if not words:
            continue
        position = words[int(bits(seed, _WORD, instance) % np.uint64(len(words)))]
        first, stop = _context_range(ids, position, last, borders, spelling)
        before, after = (
            tokenizer.decode(part, skip_special_tokens=False).strip()
            for part in (ids[first:position], ids[position + 1 : stop])
        )
        answer_id = ids[position]
        if row.hides:
            ids[position] = reader.vocabulary.mask
        blanks.append(
            Blank(
                instance=instance,
                position=position,
                ids=tuple(ids),
                segments=tuple(row.segments),
                length=row.length,
                answer_id=answer_id,
                answer=tokenizer.decode([answer_id]).strip(),
                before=before if ids[first - 1] in borders else f"… {before}",
                after=after if stop == last or ids[stop] in borders else f"{after} …",
            )
        )
    return blanks


def fill_blanks(
    model: BlankLogits, tokenizer: Tokenizer, blanks: Sequence[Blank]
) -> list[BlankResult]:
    """The model's guesses for each blank, the likeliest first."""
    if not blanks:
        return []
    with torch.no_grad():
        logits_BV = model.blank_logits(
            torch.tensor([blank.ids for blank in blanks]),
            torch.tensor([blank.segments for blank in blanks]),
            torch.tensor([blank.length for blank in blanks]),
            torch.tensor([blank.position for blank in blanks]),
        )
    results = []
    for blank, probability_V in zip(blanks, torch.softmax(logits_BV.float(), dim=-1), strict=True):
        right = float(probability_V[blank.answer_id])
        best = torch.topk(probability_V, min(TOP, len(probability_V)))
        guesses = tuple(
            FilledBlank(token_text(tokenizer, token), value, token == blank.answer_id)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
        rank = 1 + int((probability_V > probability_V[blank.answer_id]).sum())
        results.append(BlankResult(blank, guesses, rank, right))
    return results


def _context_range(
    ids: Sequence[int],
    position: int,
    last: int,
    borders: tuple[int | None, ...],
    spelling: Spelling,
) -> tuple[int, int]:
    """The range [first, stop) of tokens to show: one document, cut at words where possible."""
    least, most = _CONTEXT_TOKENS, 2 * _CONTEXT_TOKENS
    first, stop = position, position + 1
    while first > 1 and ids[first - 1] not in borders and position - first < most:
        if position - first >= least and not spelling.continues(ids[first]):
            break
        first -= 1
    while stop < last and ids[stop] not in borders and stop - position <= most:
        if stop - position > least and not spelling.continues(ids[stop]):
            break
        stop += 1
    return first, stop


def choose_prompts(
    reader: InstanceReader, tokenizer: Tokenizer, number: int, seed: int
) -> list[Prompt]:
    """Choose up to `number` prompts, each from the longest stretch of one document in a block;
    fewer if the text lacks long stretches."""
    spelling, end = Spelling.of(tokenizer), reader.vocabulary.end
    prompts: list[Prompt] = []
    for instance in _draw_instances(seed, _BLOCK, len(reader)):
        if len(prompts) == number:
            break
        row = reader.rows(np.array([instance]))
        # The longest run of one document, with the symbol that opens it.
        ids = row.ids[0, : row.lengths[0]]
        ends = np.flatnonzero(ids[1:] == end) + 1
        stretch = max(np.split(ids, ends), key=len).tolist()
        while len(stretch) > 1 and stretch[0] != end and spelling.continues(stretch[0]):
            stretch = stretch[1:]  # a block can begin within a word
        if len(stretch) < _SHORTEST_STRETCH:
            continue
        # At most half of the stretch, if possible up to where a word ends.
        most = min(LONGEST_PROMPT, len(stretch) // 2)
        lengths = (n for n in range(most, most // 2, -1) if not spelling.continues(stretch[n]))
        length = next(lengths, most)
        room = min(MOST_NEW, reader.config.length - length)
        prompt, truth = stretch[:length], stretch[length : length + room]
        text = _text(tokenizer, prompt, end).lstrip()
        prompts.append(
            Prompt(instance, tuple(prompt), room, text, added_text(tokenizer, prompt, truth, end))
        )
    return prompts


@torch.no_grad()
def continue_prompts(
    model: NextTokenLogits, tokenizer: Tokenizer, prompts: Sequence[Prompt], end: int, seed: int
) -> list[Continuation]:
    """Continue each prompt greedily and by sampling, until the model ends the document."""
    if not prompts:
        return []
    greedy, sampled = (
        generate(
            model,
            [prompt.ids for prompt in prompts],
            end,
            Sampling(temperature=temperature, seed=seed),
            streams=[prompt.instance for prompt in prompts],
            rooms=[prompt.room for prompt in prompts],
        )
        for temperature in (0.0, TEMPERATURE)
    )
    return [
        Continuation(prompt, *(added_text(tokenizer, prompt.ids, new, end) for new in both))
        for prompt, *both in zip(prompts, greedy, sampled, strict=True)
    ]


def _text(tokenizer: Tokenizer, ids: Sequence[int], end: int) -> str:
    return tokenizer.decode([t for t in ids if t != end], skip_special_tokens=False)


def added_text(tokenizer: Tokenizer, prompt: Sequence[int], new: Sequence[int], end: int) -> str:
    """The text that `new` adds to the prompt, whitespace included."""
    before = _text(tokenizer, prompt, end)
    whole = _text(tokenizer, [*prompt, *new], end)
    if whole.startswith(before):
        return whole[len(before) :]
    # The prompt ended within a multi-byte character, or decoding moved a space.
    return " " + _text(tokenizer, new, end)


class Neighbourhood:
    """The whole words of a vocabulary that have a vector, compared by cosine."""

    def __init__(self, model: WordVectors, tokenizer: Tokenizer) -> None:
        spelling = Spelling.of(tokenizer)
        words = [token for token in range(model.vocab_size) if spelling.is_word(token)]
        vectors_ND = model.vectors(words)
        length_N = np.linalg.norm(vectors_ND, axis=1)
        has_vector = np.flatnonzero(length_N)
        self._model, self._tokenizer = model, tokenizer
        self._has_blank = spelling.mark == "Ġ"  # written into a word
        self._unit_ND = vectors_ND[has_vector] / length_N[has_vector, None]
        self.ids = [words[place] for place in has_vector]
        self.words = [tokenizer.decode([token]).strip() for token in self.ids]

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


def neighbours_of_text(
    model: WordVectors, tokenizer: Tokenizer, tokens: Artifact, words: int, seed: int
) -> dict[str, list[Neighbour]]:
    """Neighbours of the first `words` distinct words drawn from held-out text by the seed."""
    neighbourhood = Neighbourhood(model, tokenizer)
    words_by_id = dict(zip(neighbourhood.ids, neighbourhood.words, strict=True))
    file = TokensSummary.of(tokens).split_files("validation")[0].file
    ids = TokensFile(tokens.folder.local(file)).text().ids
    places = bits(seed, _POSITION, np.arange(_POSITIONS)) % np.uint64(len(ids))
    distinct = dict.fromkeys(words_by_id[t] for t in ids[places].tolist() if t in words_by_id)
    return {word: neighbourhood.nearest(word, _NEAREST) for word in list(distinct)[:words]}
