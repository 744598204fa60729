"""Suites of language models: perplexity of held-out text or of lines, ranks of words, and speed.

All rungs predict the same tokens of the same texts, end symbols included. Two-sided models give
pseudo-perplexities (Salazar et al. 2020, arXiv:1910.14659), a part of its own: they are no bound.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import Paths
from rungwise.evaluation.suites.base import (
    PSEUDO,
    TOKEN_BYTES,
    Column,
    ExpectedText,
    MeasuredRung,
    Rung,
    Suite,
    compare_rungs,
    read_lines,
)
from rungwise.evaluation.suites.items import Items
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import LanguageModel, RanksWords
from rungwise.tokenizer import CLEAN_UP
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile, close_documents, document_hash

_BITS = (
    "how many yes-or-no questions the model needs for each letter of new text. A model that knows "
    "nothing needs 8; fewer are better. Models that read both sides of a word, such as BERT, have "
    "no such number"
)


_DOCUMENT_TOKENS, _LINE_TOKENS = 600, 30  # typical ones


@dataclass(frozen=True)
class HeldOutText:
    """One item: ids including the end symbol, and size in UTF-8 bytes."""

    name: str
    ids: list[int]
    size: int


class PerplexitySuite(Suite):
    """Perplexity of the held-out split, or of the lines of files."""

    needs: ClassVar[str] = "the probability of a text"
    capability: ClassVar[type] = LanguageModel
    reads: ClassVar[tuple[str, ...]] = ("path",)
    of_held_out: ClassVar[bool] = True

    kind: Literal["perplexity"] = "perplexity"
    # held-out documents to read, evenly spread; null: all
    documents: int | None = Field(default=None, ge=1)
    # the same for two-sided models, which need a pass per token; null: as many as others
    pseudo_documents: int | None = Field(default=None, ge=1)
    # files to read instead, a sentence per line; null: the held-out split
    path: Paths | None = None
    contiguous: bool = False  # read the lines of `path` as one text; false: each line begins anew

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.path is None and self.contiguous:
            raise ValueError("contiguous is of lines; set path, or leave contiguous out")
        if self.path is not None and (self.documents or self.pseudo_documents):
            raise ValueError("documents are of the held-out split; leave out path or documents")
        return self

    def measure(self, rung: Rung, name: str) -> list[Items]:
        (end,) = rung.special.require("end")
        if self.path is not None:
            texts = _read_lines(rung, self.path, f"measure.{name}.path", end)
        else:
            texts = sorted(held_out_texts(rung, end), key=lambda text: text.name)
            pseudo = None if rung.model.is_exact else self.pseudo_documents
            if most := pseudo or self.documents:
                texts = [texts[index] for index in evenly(len(texts), most)]
        ids = [text.ids for text in texts]
        if self.contiguous:
            (scores,) = rung.model.log_probabilities([[*itertools.chain.from_iterable(ids)]])
            rows = np.split(scores, np.cumsum([*map(len, ids)])[:-1])
        else:
            rows = rung.model.log_probabilities(ids)
        nats = -np.array([row.sum() for row in rows])
        tokens, sizes = [len(text.ids) for text in texts], [text.size for text in texts]
        names, groups = [text.name for text in texts], [""] * len(texts)
        part = "" if rung.model.is_exact else PSEUDO
        return [
            Items(name, metric, names, groups, np.stack([nats, np.array(units)], axis=1), part)
            for metric, units in (("perplexity", tokens), ("bits_per_byte", sizes))
        ]

    def count_tokens(self, text: ExpectedText) -> float:
        if self.path is not None:
            return text.tokens(text.file_bytes / TOKEN_BYTES, _LINE_TOKENS)
        pseudo = None if text.masked_row is None else self.pseudo_documents
        most = pseudo or self.documents or math.inf
        predicted = min(text.held_out, most * _DOCUMENT_TOKENS)
        return text.tokens(predicted, _DOCUMENT_TOKENS)

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        # Perplexities over different tokenizers do not compare.
        one_tokenizer = len({rung.tokenizer for rung in rungs}) == 1
        return [
            compare_rungs(
                *(rungs, name, metric),
                name=metric.replace("_", " "),
                ranked=ranked,
                meaning=meaning,
            )
            for metric, ranked, meaning in (
                ("bits_per_byte", True, _BITS),
                ("perplexity", one_tokenizer, ""),
            )
        ]

    def show(self, name: str, rungs: Sequence[MeasuredRung]) -> None:
        return None


def held_out_texts(rung: Rung, end: int) -> Iterator[HeldOutText]:
    """Yield the documents of the held-out split, each closed by the end symbol."""
    sizes = {
        document_hash(f"{source}\0{document.id}"): len(" ".join(document.sentences).encode("utf-8"))
        for source, document in rung.held_out
    }
    for row in TokensSummary.of(rung.tokens).split_files("validation"):
        tokens = TokensFile(rung.tokens.folder.local(row.file)).text()
        ids, starts = close_documents(tokens, end)
        flat = ids.tolist()
        for number, document in enumerate(tokens.documents.tolist()):
            if document in sizes:
                text = flat[starts[number] : starts[number + 1]]
                yield HeldOutText(f"{document:016x}", text, sizes[document])


def _read_lines(rung: Rung, paths: Paths, key: str, end: int) -> list[HeldOutText]:
    """The non-blank lines of all files. Raises DataError if there is none."""
    names, lines = [], []
    for file, number, line in read_lines(paths, key):
        if clean := CLEAN_UP.normalize_str(line):
            names.append(f"{file.name}:{number}")
            lines.append(clean)
    if not lines:
        raise DataError(f"{key}: expected lines of text, found only blank ones; change {key}")
    return [
        HeldOutText(name, [*ids, end], len(line.encode("utf-8")))
        for name, ids, line in zip(names, rung.encode(lines), lines, strict=True)
    ]


class RanksSuite(Suite):
    """Ranks of words of the held-out split among all words in their places, for models that give no
    probabilities (Turian et al. 2010, "Word representations", ACL)."""

    needs: ClassVar[str] = "scores of all words in the place of one"
    capability: ClassVar[type] = RanksWords
    of_held_out: ClassVar[bool] = True

    kind: Literal["ranks"] = "ranks"
    words: int = Field(default=1000, ge=1)  # held-out words to rank, evenly spread

    def measure(self, rung: Rung, name: str) -> list[Items]:
        (end,) = rung.special.require("end")
        texts = sorted(held_out_texts(rung, end), key=lambda text: text.name)
        starts = np.cumsum([0, *(len(text.ids) for text in texts)])
        samples = evenly(int(starts[-1]), self.words)
        places = [
            (samples[(samples >= begin) & (samples < stop)] - begin).tolist()
            for begin, stop in itertools.pairwise(starts)
        ]
        ranks = rung.model.ranks([text.ids for text in texts], places)
        sums = [[np.log(each).sum(), len(each)] for each in ranks]
        nonempty = [number for number, each in enumerate(places) if each]
        names = [texts[number].name for number in nonempty]
        numbers = np.array(sums)[nonempty]
        return [Items(name, "log_rank", names, [""] * len(names), numbers)]

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        return [compare_rungs(rungs, name, "log_rank", name=f"log rank ({name})")]


class SpeedSuite(Suite):
    """Tokens read per second, for texts of different lengths, read one at a time so that no other
    text fills the processor; an item is a round through all lengths."""

    needs: ClassVar[str] = "the probability of a text"
    capability: ClassVar[type] = LanguageModel

    kind: Literal["speed"] = "speed"
    # lengths of the texts, in tokens; each is reported by itself
    lengths: tuple[int, ...] = Field(default=(16, 128), min_length=1)
    rounds: int = Field(default=20, ge=3)  # times each text is read

    @field_validator("lengths")
    @classmethod
    def _check_lengths(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if min(lengths) < 1 or len({*lengths}) < len(lengths):
            raise ValueError(f"expected different numbers from 1, found {list(lengths)}")
        return lengths

    def count_tokens(self, text: ExpectedText) -> float:
        return self.rounds * sum(text.tokens(length, length) for length in self.lengths)

    def measure(self, rung: Rung, name: str) -> list[Items]:
        ordinary = sorted(set(range(rung.model.vocab_size)) - set(rung.special.ids))
        rng = np.random.default_rng(0)
        texts = [rng.choice(ordinary, length).tolist() for length in self.lengths]
        seconds = np.zeros((1 + self.rounds, len(texts)))  # the first round warms up
        for round_seconds in seconds:
            for place, text in enumerate(texts):
                start = time.perf_counter()
                rung.model.log_probabilities([text])
                round_seconds[place] = time.perf_counter() - start
        names = [str(number) for number in range(1, 1 + self.rounds)]
        items = []
        for length, durations in zip(self.lengths, seconds[1:].T, strict=True):
            numbers = np.stack([np.full(self.rounds, float(length)), durations], axis=1)
            part, groups = f"length {length}", [""] * self.rounds
            items.append(Items(name, "tokens_per_second", names, groups, numbers, part))
        return items
