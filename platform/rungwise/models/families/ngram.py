"""Families that are fitted by counting n-grams, and ARPA files.

    documents ──> n-grams ──> modified Kneser-Ney ──> P(token | n - 1 tokens before)
    documents ──> n-grams ──> clusters of words ──> P(class | classes before) P(word | class)

Each document starts a new context, like a line in kenlm; n-grams inside it may cross sentence ends.

The second model is that of Brown et al. 1992, "Class-Based n-gram Models of Natural Language".
Words too rare to be clustered, special and unseen tokens share a class, in which a word has the
share of its count plus 1; the start and the end symbol have a class each. As a vector, a word is 1
for each prefix of its path in the tree of 4, 6, 10 and 20 bits (Turian, Ratinov & Bengio 2010).

ARPA files (SRILM, kenlm) have log10 of the probability of each n-gram and of the back-off weight of
each context. <s> starts a sentence and is never predicted, </s> ends it, <unk> stands for any
unknown word.

N n-grams, n words of each, V vocabulary, C clusters, D prefixes
"""

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.arrays import Floats, Ints, Singles
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models import ngram_model
from rungwise.models.families.kneser_ney import Smoothing, estimate_model, estimate_tensors
from rungwise.models.family import Family, Size
from rungwise.models.fitting import (
    Create,
    Parts,
    Tasks,
    TextFile,
    Weights,
    fill_arrays,
    merge_parts,
)
from rungwise.models.losses.objectives import CAUSAL, Objective
from rungwise.models.losses.output_layer import cluster_words
from rungwise.models.ngram_model import NgramLanguageModel, Table, find_ngrams

FILE = "model.arpa"
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
_NEVER = -99.0  # stands for log10 of 0
_LN_10 = math.log(10)
_TOLERANCE = 0.01  # of the sum of the probabilities of single words
_Section = tuple[np.ndarray, Floats, Floats]  # n-grams (N, n), their logarithms and weights (N,)
_LITTLE = 1_000_000  # tokens, of which the counts may give no discounts
_PREFIXES = (4, 6, 10, 20)  # bits of the path of a word


def name_tokens(words: Sequence[str], special: SpecialIds) -> list[str]:
    """Return the word in the file of each token; [UNK] is <unk> unless a token is spelt so."""
    names = [*words]
    start, end = special.require("cls", "end")
    names[start], names[end] = START, END
    if special.unk is not None and UNKNOWN not in names:
        names[special.unk] = UNKNOWN
    return names


def arpa_lines(model: NgramLanguageModel, words: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the file; `words` holds the word of each id, START and END included.
    Raises DataError for a word that contains blanks or occurs twice."""
    for word in words:
        if len(word.split()) != 1:
            raise DataError(
                f"expected words without blanks for an ARPA file, found {word!r}; give the n-gram "
                "model a tokenizer whose tokens have none"
            )
    if len(set(words)) < len(words):
        twice = next(word for n, word in enumerate(words) if word in words[:n])
        raise DataError(f"expected each word once for an ARPA file, found {twice!r} twice")
    yield "\\data\\"
    for order, values in enumerate(model.ngram_log_probabilities, start=1):
        yield f"ngram {order}={len(values)}"
    ngrams = np.arange(model.vocab_size)[:, None]  # (N, n)
    for order, values in enumerate(model.ngram_log_probabilities, start=1):
        if order > 1:
            keys = model.keys[order - 2]
            context = ngrams[keys // model.vocab_size]
            ngrams = np.concatenate([context, (keys % model.vocab_size)[:, None]], axis=1)
        yield ""
        yield f"\\{order}-grams:"
        logs = np.maximum(values / _LN_10, _NEVER).tolist()
        ids: list[list[int]] = ngrams.tolist()
        rows = (" ".join([words[index] for index in row]) for row in ids)
        if order < model.order:
            backoffs = (model.log_backoffs[order - 1] / _LN_10).tolist()
            for log, row, backoff in zip(logs, rows, backoffs, strict=True):
                yield f"{log:.9g}\t{row}\t{backoff:.9g}"
        else:
            yield from (f"{log:.9g}\t{row}" for log, row in zip(logs, rows, strict=True))
    yield ""
    yield "\\end\\"


def read_arpa(
    path: str, lines: Iterable[bytes], words: Sequence[str], special: SpecialIds
) -> NgramLanguageModel:
    """Return the model in the lines of the file `path`; `words` holds the word of each token, as of
    `name_tokens`. Tokens that the file lacks share the probability of <unk> evenly. Raises
    DataError for a file that is damaged, has words that are no tokens, or lacks tokens and <unk>.
    """
    sections = _read_sections(path, lines, {word.encode(): id_ for id_, word in enumerate(words)})
    start, end = special.require("cls", "end")
    log_probabilities, log_backoffs = _fill_vocabulary(path, sections[0], words, start, special)
    keys, values, backoffs = [], [log_probabilities], [log_backoffs]
    for size, (ngrams_Nn, logs_N, weights_N) in enumerate(sections[1:], start=2):
        contexts, exists = find_ngrams(ngrams_Nn[:, :-1], keys, len(words))
        if not exists.all():
            context = _join_words(words, ngrams_Nn[exists.argmin(), :-1])
            raise DataError(
                f"{path}: an n-gram of {size} words begins with {context!r}, which has no line of "
                "its own, so its back-off weight is unknown; write the file anew with that n-gram"
            )
        key_N = contexts * len(words) + ngrams_Nn[:, -1]
        ascending = np.argsort(key_N)
        key_N = key_N[ascending]
        if len(twice := np.flatnonzero(key_N[1:] == key_N[:-1])):
            ngram = _join_words(words, ngrams_Nn[ascending[twice[0]]])
            raise DataError(f"{path}: expected each n-gram once, found {ngram!r} twice")
        keys.append(key_N)
        values.append(logs_N[ascending])
        backoffs.append(weights_N[ascending])
    no_discounts = np.zeros((len(sections), 3))
    return NgramLanguageModel(
        len(words), start, no_discounts, tuple(keys), tuple(values), tuple(backoffs[:-1]), end
    )


def _read_sections(path: str, lines: Iterable[bytes], ids: dict[bytes, int]) -> list[_Section]:
    """Return the sections of the file, by the length of their n-grams; logarithms are natural."""
    sizes: list[int] = []
    sections: list[_Section] = []
    numbered = enumerate(lines, start=1)
    for _, line in numbered:
        if line.strip() == b"\\data\\":
            break
    for number, line in numbered:
        if not (fields := line.split()):
            continue
        if fields[0] == b"ngram":
            size = line.rpartition(b"=")[2].strip()
            if not size.isdigit():
                raise _explain_number(path, number, size)
            sizes.append(int(size))
        elif fields[0] == b"\\end\\":
            break
        else:
            size = len(sections) + 1
            if size > len(sizes) or fields[0] != b"\\%d-grams:" % size:
                text = line.strip()[:80].decode(errors="replace")
                raise DataError(f"{path}, line {number}: expected \\{size}-grams:, found {text!r}")
            sections.append(_read_section(path, numbered, size, sizes[size - 1], ids))
    if not sizes or len(sections) < len(sizes):
        raise DataError(
            f"{path}: expected an ARPA file with \\data\\ and a section for each of its sizes, "
            f"found {len(sections)} of {len(sizes) or 'no'} sections; is it complete?"
        )
    while len(sections) > 1 and not len(sections[-1][0]):
        sections.pop()  # of an order that no text was long enough for
    return sections


def _read_section(
    path: str, lines: Iterator[tuple[int, bytes]], size: int, count: int, ids: dict[bytes, int]
) -> _Section:
    """Read `count` n-grams of `size` words."""
    ngrams, logs, weights = array("i"), array("d"), array("d")
    for number, line in lines if count else ():
        if not (fields := line.split()):
            if len(logs) == count:
                break
            continue
        if len(fields) not in (size + 1, size + 2):
            raise DataError(
                f"{path}, line {number}: expected a logarithm, {size} words and at most a back-off "
                f"weight, found {len(fields)} fields, in section {size} with {count:,} lines"
            )
        for word in fields[1 : size + 1]:
            if word not in ids:
                raise DataError(
                    f"{path}, line {number}: {word.decode(errors='replace')!r} is no token of the "
                    "tokenizer; count text that is cut into its tokens, or set tokenizer to one of "
                    "whole words with all words of the file"
                )
            ngrams.append(ids[word])
        logs.append(_read_number(path, number, fields[0]))
        if logs[-1] > _TOLERANCE:
            raise DataError(
                f"{path}, line {number}: expected the logarithm of a probability, at most 0, found "
                f"{logs[-1]:g}"
            )
        has_weight = len(fields) == size + 2
        weights.append(_read_number(path, number, fields[-1]) if has_weight else 0.0)
        if len(logs) == count:
            break
    if len(logs) < count:
        raise DataError(f"{path}: expected {count:,} n-grams of {size} words, found {len(logs):,}")
    logs_N, weights_N = (
        np.maximum(np.array(column), _NEVER) * _LN_10 for column in (logs, weights)
    )
    return np.array(ngrams, np.int64).reshape(-1, size), logs_N, weights_N


def _join_words(words: Sequence[str], ids_n: Ints) -> str:
    return " ".join([words[int(id_)] for id_ in ids_n])


def _read_number(path: str, number: int, field: bytes) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if math.isnan(value) or value == math.inf:
        raise _explain_number(path, number, field)
    return value


def _explain_number(path: str, number: int, field: bytes) -> DataError:
    text = field.strip()[:80].decode(errors="replace")
    return DataError(f"{path}, line {number}: expected a number, found {text!r}")


def _fill_vocabulary(
    path: str, section: _Section, words: Sequence[str], start: int, special: SpecialIds
) -> tuple[Floats, Floats]:
    """Return the log-probability and the back-off weight of each token, (V,)."""
    ids_N1, logs_N, weights_N = section
    ids_N = ids_N1[:, 0]
    logs_V, weights_V = np.full(len(words), -np.inf), np.zeros(len(words))
    logs_V[ids_N], weights_V[ids_N] = logs_N, weights_N
    logs_V[start] = _NEVER * _LN_10
    silent = [id_ for id_ in (special.pad, special.mask) if id_ is not None]
    lacking = np.setdiff1d(np.flatnonzero(np.isinf(logs_V)), silent)
    logs_V[np.isinf(logs_V)] = _NEVER * _LN_10
    if len(lacking):
        if special.unk is None or special.unk in lacking:
            raise DataError(
                f"{path} has neither {words[lacking[0]]!r} nor {UNKNOWN}, whose probability "
                f"{len(lacking):,} tokens that it lacks would share; estimate it with {UNKNOWN}"
            )
        logs_V[[special.unk, *lacking]] = logs_V[special.unk] - math.log(len(lacking) + 1)
    total = float(np.exp(logs_V).sum())
    if abs(total - 1) > _TOLERANCE:
        raise DataError(
            f"{path}: expected probabilities of single words that sum to 1, found {total:.3f}"
        )
    return logs_V, weights_V


COUNTED = replace(CAUSAL, reads=())  # counts need no instances


class NgramConfig(Family):
    """An n-gram model of one order; published Kneser-Ney baselines have 5."""

    year: ClassVar[int] = 1998
    paper: ClassVar[str] = "Chen & Goodman"
    idea: ClassVar[str] = "counts words, and which words follow which"
    objectives: ClassVar = (COUNTED,)
    suffixes: ClassVar = (".arpa", ".arpa.gz")

    kind: Literal["ngram"] = "ngram"
    order: int = Field(default=5, ge=1, le=16)
    # discounts for counts of 1, 2 and 3 or more, where a corpus is too small to estimate them;
    # kenlm's are [0.5, 1, 1.5]
    fallback_discounts: (
        tuple[
            Annotated[float, Field(gt=0, le=1)],
            Annotated[float, Field(gt=0, le=2)],
            Annotated[float, Field(gt=0, le=3)],
        ]
        | None
    ) = None
    # leave out n-grams that occur at most so often, by order; the last holds for longer ones
    prune: tuple[int, ...] = Field(default=(0,), min_length=1)

    @field_validator("prune")
    @classmethod
    def _keep_words_and_contexts(cls, thresholds: tuple[int, ...]) -> tuple[int, ...]:
        if thresholds[0] != 0 or list(thresholds) != sorted(thresholds):
            raise ValueError(
                "expected 0 for single tokens and then numbers that do not fall, such as "
                f"[0, 0, 1], found {list(thresholds)}"
            )
        return thresholds

    def describe(self) -> str:
        return f"order {self.order}, modified Kneser-Ney"

    def page_name(self, objective: Objective) -> str:
        return f"{self.order}-gram model"

    def suggest(self, size: Size) -> dict[str, Any]:
        little = size.tokens < _LITTLE
        return {"model.fallback_discounts": [0.5, 1.0, 1.5]} if little else {}

    def count(self, text: TokenisedText, special: SpecialIds) -> Table:
        return ngram_model.count_documents(text, special, self.order)

    def estimate(
        self, parts: Parts, tasks: Tasks, create: Create, vocab_size: int, special: SpecialIds
    ) -> Weights:
        (start,) = special.require("cls")
        smoothing = Smoothing(self.fallback_discounts, self.prune)
        return estimate_tensors(parts, vocab_size, start, smoothing, tasks, create)

    def text_file(
        self, model: NgramLanguageModel, words: Sequence[str], special: SpecialIds
    ) -> TextFile:
        """Return an ARPA file; [UNK] is <unk> unless the vocabulary has a word spelt so."""
        return TextFile(FILE, "kenlm.Model", arpa_lines(model, name_tokens(words, special)))

    @classmethod
    def read_text_file(
        cls, path: str, lines: Iterable[bytes], words: Sequence[str], special: SpecialIds
    ) -> tuple[Self, Weights]:
        """Read an ARPA file. Raises DataError as `read_arpa` does."""
        model = read_arpa(path, lines, name_tokens(words, special), special)
        return cls(order=model.order), model.to_tensors()

    def check_given(self, given: Family) -> None:
        """Raise ConfigError for n-grams of another order."""
        order = getattr(given, "order", None)
        if given.kind != self.kind or order != self.order:
            raise ConfigError(
                f"the counts of initial are n-grams of up to {order} words, and the model has the "
                f"order {self.order}; set its order (model.order, or model.counts.order of a "
                f"mixture) to {order}"
            )

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> NgramLanguageModel:
        return replace(NgramLanguageModel.from_tensors(tensors), end_id=special.end)

    split = staticmethod(ngram_model.split_table)
    merge = staticmethod(ngram_model.merge_tables)


_SMOOTHING = Smoothing((0.5, 1.0, 1.5))  # as kenlm, where the counts of few classes give none


class BrownConfig(Family):
    """A class n-gram model; the paper has 1,000 classes for a vocabulary of 260,741 words."""

    year: ClassVar[int] = 1992
    paper: ClassVar[str] = "Brown et al."
    idea: ClassVar[str] = "groups words that are used alike, and counts which group follows which"
    page: ClassVar[str] = "Brown class model"
    objectives: ClassVar = (COUNTED,)

    kind: Literal["brown"] = "brown"
    classes: int = Field(default=256, ge=2)  # clusters of words
    minimum_count: int = Field(default=5, ge=1)  # words that occur less often share one more class
    class_order: int = Field(default=2, ge=2, le=16)  # 2: a class is predicted from the one before

    def describe(self) -> str:
        return f"{self.classes} classes of words, order {self.class_order}"

    def count(self, text: TokenisedText, special: SpecialIds) -> Table:
        return ngram_model.count_documents(text, special, self.class_order)

    def estimate(
        self, parts: Parts, tasks: Tasks, create: Create, vocab_size: int, special: SpecialIds
    ) -> Weights:
        table = merge_parts(parts, tasks, self.merge)
        return fill_arrays(create, self.estimate_model(table, vocab_size, special).to_tensors())

    def estimate_model(self, table: Table, vocab_size: int, special: SpecialIds) -> "ClassModel":
        """Cluster the words, and estimate the model of classes. Raises DataError for too few."""
        start, end = special.require("cls", "end")
        left, right = table.ngrams[:, -2].astype(np.int64), table.ngrams[:, -1].astype(np.int64)
        occurrences_V = np.bincount(right, table.counts, vocab_size).astype(np.int64)
        counts_V = np.where(occurrences_V < self.minimum_count, 0, occurrences_V)
        counts_V[list(special.ids)] = 0
        if (words := np.count_nonzero(counts_V)) < self.classes:
            raise DataError(
                f"expected at least model.classes {self.classes} tokens that the training split "
                f"has {self.minimum_count} times, found {words}; lower model.classes or "
                "model.minimum_count, or add text"
            )
        clusters = cluster_words(left, right, table.counts, counts_V, self.classes)
        rare, first, last = (self.classes + n for n in range(3))
        class_V = np.where(clusters.classes < 0, rare, clusters.classes)
        class_V[[start, end]] = first, last
        weight_V = np.where(class_V == rare, occurrences_V + 1, occurrences_V)
        weight_V[[start, end]] = 1
        totals = np.bincount(class_V, weight_V)
        classes = ngram_model.merge_tables(
            [Table(class_V.astype(np.uint32)[table.ngrams], table.counts)]
        )
        model = estimate_model(classes, len(totals), first, _SMOOTHING)
        return ClassModel(
            replace(model, end_id=last), class_V, np.log(weight_V / totals[class_V]), clusters.paths
        )

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> "ClassModel":
        ngrams = NgramLanguageModel.from_tensors(tensors)
        bits = ("".join(map(str, row)).rstrip("2") for row in tensors["paths"].tolist())
        return ClassModel(
            replace(ngrams, end_id=self.classes + 2),
            tensors["classes"],
            tensors["log_words"],
            tuple(bits),
        )

    def text_file(self, model: "ClassModel", words: Sequence[str], special: SpecialIds) -> TextFile:
        """Return the bits of each word's path in the tree of classes, a tab and the word; in the
        order of the tree, words by falling probability."""
        order = np.lexsort((-model.log_words, model.classes))
        lines = (
            f"{model.paths[model.classes[index]]}\t{words[index]}"
            for index in order
            if model.classes[index] < len(model.paths)
        )
        return TextFile("paths.txt", "any program that reads the paths of Brown clusters", lines)

    split = staticmethod(ngram_model.split_table)
    merge = staticmethod(ngram_model.merge_tables)


@dataclass(frozen=True, eq=False)
class ClassModel:
    """An exact language model: P(word | before) = P(class | classes before) P(word | class). The
    last three classes are those of rare words, of the start and of the end symbol."""

    is_exact: ClassVar[bool] = True

    ngrams: NgramLanguageModel  # of classes
    classes: Ints  # (V,) of each word
    log_words: Floats  # (V,) of each word in its class
    paths: tuple[str, ...]  # (C,) bits of each cluster

    @property
    def vocab_size(self) -> int:
        return len(self.classes)

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        classes = [self.classes[np.asarray(text, np.int64)] for text in texts]
        scores = self.ngrams.log_probabilities(classes)  # pyright: ignore[reportArgumentType]
        return [
            row + self.log_words[np.asarray(text, np.int64)]
            for row, text in zip(scores, texts, strict=True)
        ]

    def vectors(self, ids: Sequence[int]) -> Singles:
        """Return the prefixes (len(ids), D) of words; zeros for one in no cluster."""
        return self._prefixes[np.minimum(self.classes[list(ids)], len(self.paths))]

    @cached_property
    def _prefixes(self) -> Singles:
        each = [[(bits, path[:bits]) for bits in _PREFIXES] for path in self.paths]
        column = {prefix: n for n, prefix in enumerate(dict.fromkeys(itertools.chain(*each)))}
        rows = np.zeros((len(each) + 1, len(column)), np.float32)
        for row, prefixes in zip(rows, each, strict=False):
            row[[column[prefix] for prefix in prefixes]] = 1.0
        return rows

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        longest = max(map(len, self.paths))
        bits = [[int(bit) for bit in path.ljust(longest, "2")] for path in self.paths]
        own = {"classes": self.classes, "log_words": self.log_words}
        return self.ngrams.to_tensors() | own | {"paths": np.array(bits, np.int8)}
