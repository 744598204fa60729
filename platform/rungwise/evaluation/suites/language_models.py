"""Suites of language models: minimal pairs, perplexity, ranks of words, and speed.

In a minimal pair, is the acceptable one of two sentences the more probable? Those of BLiMP
(Warstadt et al. 2020, arXiv:1912.00582) or ZhoBLiMP (Liu et al. 2024, arXiv:2411.06096), or
sentences of any text with copies altered by a rule. Masked models are scored by PLL-word-l2r (Kauf
& Ivanova 2023, arXiv:2305.10588). Ties count half, as a guess would; BabyLM's pipeline counts them
as correct.

For perplexity all rungs predict the same tokens of the same texts, end symbols included. Two-sided
models give pseudo-perplexities (Salazar et al. 2020, arXiv:1910.14659), a part of its own: they are
no bound.
"""

import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import Paths
from rungwise.corpus.document import Document
from rungwise.evaluation.suites import base
from rungwise.evaluation.suites.items import Items, SuiteScore
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import HidesWords, LanguageModel, RanksWords
from rungwise.tasks.data.made import PLAIN_WORD, LikeWords, count_words, text_hash
from rungwise.tasks.formats.base import join_names, parse_json
from rungwise.tokenizer import CLEAN_UP
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile, close_documents, document_hash

_SHORTEST, _LONGEST = 5, 25  # words; two-sided models read a sentence once a word
_REACH = 20  # how far apart in rank words of like frequency may be
_LEAST = 5  # occurrences of such a word in the held-out text
TIES_TO_GOOD, TIES = "ties_to_good", "ties"  # parts besides the one with half credit
_TOTALS = {
    "": "all pairs, ties count half",
    TIES_TO_GOOD: "all pairs, ties count as correct",
    TIES: "share of ties",
}
_WORDS = (
    "How often does a model give the acceptable one of two minimally different sentences the "
    "higher probability? Percent of pairs, by phenomenon; chance is 50. Ties count half."
)
# Nats. Float32 rounding of a sentence's sum is about 1e-5 and varies with the batch; models differ
# truly by less than this in fewer than one of 67,000 pairs.
_EQUAL = 1e-4
_AT_ONCE = 1 << 13  # sentences, so that batches fill with rows of one length
# The released files separate two paradigms that the paper's tables count to another phenomenon.
_PHENOMENA = {"s-selection": "argument_structure"}
# To foretell how much is read: of the held-out split, and of BLiMP, whose files are paradigms.
_RULES, _SENTENCE_TOKENS = 2, 20
_PAIR_BYTES, _BLIMP_TOKENS = 440, 12
_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
_BITS = (
    "how many yes-or-no questions the model needs for each letter of new text. A model that knows "
    "nothing needs 8; fewer are better. Models that read both sides of a word, such as BERT, have "
    "no such number"
)
_DOCUMENT_TOKENS, _LINE_TOKENS = 600, 30  # typical ones


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in one thing; `number` is the pair's id within its paradigm."""

    paradigm: str
    phenomenon: str
    number: str
    good: str
    bad: str

    @property
    def name(self) -> str:
        return f"{self.paradigm}/{self.number}"


def held_out_sentences(documents: Iterable[Document]) -> list[tuple[str, str]]:
    """The place and the text of each sentence of middling length, each text once."""
    sentences: dict[str, str] = {}
    for document in documents:
        for paragraph, own in enumerate(document.paragraphs(), start=1):
            for number, sentence in enumerate(own, start=1):
                if _SHORTEST <= len(PLAIN_WORD.findall(sentence)) <= _LONGEST:
                    sentences.setdefault(sentence, f"{document.id}, {paragraph}.{number}")
    return [(place, sentence) for sentence, place in sentences.items()]


def alter_sentences(sentences: Sequence[tuple[str, str]], number: int | None) -> list[MinimalPair]:
    """The pairs of each rule, `number` of sentences drawn by their hash, or all."""
    words = LikeWords(count_words(sentence for _, sentence in sentences), _LEAST)
    rules: dict[str, Callable[[str], str]] = {
        "swapped_words": swap_words,
        "other_word": lambda sentence: replace_word(sentence, words),
    }
    order = sorted(sentences, key=lambda item: text_hash(item[1]))
    pairs = []
    for rule, alter in rules.items():
        copies = ((place, sentence, alter(sentence)) for place, sentence in order)
        candidates = (MinimalPair(rule, rule, *each) for each in copies if each[-1])
        pairs += itertools.islice(candidates, number)
    return pairs


def swap_words(sentence: str) -> str:
    """Swap two neighbouring words, never the first, which has other tokens in some tokenizers; ""
    if there are none."""
    pairs = [
        (one, other)
        for one, other in itertools.pairwise([*PLAIN_WORD.finditer(sentence)][1:])
        if one[0] != other[0] and not sentence[one.end() : other.start()].strip()
    ]
    if not pairs:
        return ""
    one, other = min(pairs, key=lambda pair: text_hash(sentence, pair[0].start()))
    between = sentence[one.end() : other.start()]
    return sentence[: one.start()] + other[0] + between + one[0] + sentence[other.end() :]


def replace_word(sentence: str, words: LikeWords) -> str:
    """Replace a word by one of like frequency; "" if no word can be."""
    matches = [match for match in PLAIN_WORD.finditer(sentence) if match[0] in words]
    if not matches:
        return ""
    match = min(matches, key=lambda match: text_hash(sentence, match.start()))
    other = "".join(words.draw(match[0], 1, _REACH, sentence))
    return sentence[: match.start()] + other + sentence[match.end() :]


class MinimalPairsSuite(base.Suite):
    """Pairs of acceptable and unacceptable sentences, JSON Lines as in BLiMP.zip, its supplement
    and ZhoBLiMP.tar.gz; without `path`, sentences of the held-out split and altered copies."""

    needs: ClassVar[str] = "the probability of a text"
    capability: ClassVar[type] = LanguageModel
    reads: ClassVar[tuple[str, ...]] = ("path",)
    of_held_out: ClassVar[bool] = True
    section: ClassVar[str] = "Minimal pairs"

    kind: Literal["minimal_pairs"] = "minimal_pairs"
    path: Paths | None = None  # files, folders or globs with pairs; null: the held-out split
    # pairs per paradigm, the first of a fixed draw; null: all
    pairs_per_paradigm: int | None = Field(default=None, ge=1)

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        number = self.pairs_per_paradigm
        if self.path is None:
            sentences = held_out_sentences(document for _, document in rung.held_out)
            pairs = alter_sentences(sentences, number)
            if not pairs:
                raise DataError(
                    f"measure.{name}: expected held-out sentences of {_SHORTEST} to {_LONGEST} "
                    "words in letters, found none; name a path, or leave the suite out"
                )
        else:
            pairs = sample_pairs(read_pairs(self.path, f"measure.{name}.path"), number)
        scores = sentence_scores(rung, [text for pair in pairs for text in (pair.good, pair.bad)])
        differences = scores[0::2] - scores[1::2]
        names, groups = [pair.name for pair in pairs], [pair.phenomenon for pair in pairs]
        return [
            Items.of_credit(name, part, names, groups, credit)
            for part, credit in pair_credits(differences).items()
        ]

    def count_tokens(self, text: base.ExpectedText) -> float:
        if self.path is None:
            paradigms, length = _RULES, _SENTENCE_TOKENS
            pairs = paradigms * text.held_out / length
        else:
            paradigms, length = text.files, _BLIMP_TOKENS
            pairs = text.file_bytes / _PAIR_BYTES
        pairs = min(pairs, paradigms * (self.pairs_per_paradigm or math.inf))
        return text.tokens(2 * pairs * length, length)

    def columns(self, name: str, rungs: base.Rungs) -> list[base.Column]:
        return [base.compare_rungs(rungs, name, "accuracy")]

    def show(self, name: str, rungs: base.Rungs) -> base.SuiteBlock:
        phenomena: dict[tuple[str, str], dict[str, SuiteScore]] = {}
        totals = {(words, ""): {} for words in _TOTALS.values()}
        for rung in rungs:
            for score in rung.scores(name):
                totals[_TOTALS[score.part], ""][rung.name] = score
            for score in rung.measure.scores:
                if (score.suite, score.part) == (name, "") and score.group is not None:
                    row = score.group.replace("_", " "), ""
                    phenomena.setdefault(row, {})[rung.name] = score
        return base.SuiteBlock(name, "phenomenon", phenomena | totals, _WORDS)


def pair_credits(differences: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The credit of each pair by part, from log P(good) - log P(bad)."""
    ties = np.where(np.abs(differences) < _EQUAL, 1.0, 0.0)
    right = np.where(differences >= _EQUAL, 1.0, 0.0)
    return {"": right + ties / 2, TIES_TO_GOOD: right + ties, TIES: ties}


def sentence_scores(rung: base.Rung, texts: Sequence[str]) -> NDArray[np.float64]:
    """The log-probability of each text; each distinct row of ids is scored once."""
    hides_words = isinstance(rung.model, HidesWords)
    if hides_words:
        rows, starts = rung.encode_words(texts)
    else:
        (end,) = rung.special.require("end")
        rows, starts = [[*ids, end] for ids in rung.encode(texts)], None
    keys = [tuple(ids) for ids in rows]
    numbers = {key: number for number, key in enumerate(keys)}  # equal ids have equal words
    ordered = sorted(numbers, key=len)
    sums: dict[tuple[int, ...], float] = {}
    for first in range(0, len(ordered), _AT_ONCE):
        part = ordered[first : first + _AT_ONCE]
        if starts is not None:
            words = [starts[numbers[key]] for key in part]
            scores = rung.model.log_probabilities_in_words(part, words)
        else:
            scores = rung.model.log_probabilities(part)
        # An exact sum does not depend on the order of the terms.
        sums |= {key: math.fsum(row) for key, row in zip(part, scores, strict=True)}
        rung.report.progress(first + len(part), len(ordered))
    return np.array([sums[key] for key in keys])


def read_pairs(paths: Paths, key: str) -> list[MinimalPair]:
    """All pairs, sorted by paradigm. Raises DataError, naming `key`, for a line that is no pair."""
    pairs = []
    for file, line, text in base.read_lines(paths, key, _ENDINGS):
        if not text.strip():
            continue
        where, name = f"{file.uri}:{line}", file.name.rpartition("/")[2].partition(".")[0]
        row = parse_json(text, file.uri, line, "expected JSON, found none", f"change {key}")
        row = row if isinstance(row, dict) else {}
        paradigm = row.get("UID", name)
        term = row.get("linguistics_term", row.get("phenomenon", paradigm))
        number = row.get("pairID", row.get("pair_id", line))
        sentences = (row.get("sentence_good"), row.get("sentence_bad"))
        values = (paradigm, _PHENOMENA.get(str(term), term), str(number), *sentences)
        if odd := [value for value in values if not isinstance(value, str)]:
            raise DataError(
                f"{where}: expected a pair with the texts sentence_good and sentence_bad, and UID "
                "and linguistics_term or phenomenon if it has them, found the fields "
                f"{join_names(row)}, and {odd[0]!r} for one of them; change {key}"
            )
        pairs.append(MinimalPair(*map(str, values)))
    if not pairs:
        raise DataError(
            f"{key}: expected files of JSON Lines (*.jsonl), found none in {', '.join(paths)}; "
            f"change {key}"
        )
    return sorted(pairs, key=lambda pair: pair.paradigm)


def sample_pairs(pairs: Sequence[MinimalPair], per_paradigm: int | None) -> list[MinimalPair]:
    """Draw `per_paradigm` of the sorted pairs of each; the draw depends on the paradigm alone."""
    if per_paradigm is None:
        return list(pairs)
    sample: list[MinimalPair] = []
    for paradigm, rows in itertools.groupby(pairs, lambda pair: pair.paradigm):
        members = list(rows)
        order = np.random.default_rng(zlib.crc32(paradigm.encode())).permutation(len(members))
        sample += [members[number] for number in sorted(order[:per_paradigm].tolist())]
    return sample


@dataclass(frozen=True)
class HeldOutText:
    """One item: ids including the end symbol, and size in UTF-8 bytes."""

    name: str
    ids: list[int]
    size: int


class PerplexitySuite(base.Suite):
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

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
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
        part = "" if rung.model.is_exact else base.PSEUDO
        return [
            Items(name, metric, names, groups, np.stack([nats, np.array(units)], axis=1), part)
            for metric, units in (("perplexity", tokens), ("bits_per_byte", sizes))
        ]

    def count_tokens(self, text: base.ExpectedText) -> float:
        if self.path is not None:
            return text.tokens(text.file_bytes / base.TOKEN_BYTES, _LINE_TOKENS)
        pseudo = None if text.masked_row is None else self.pseudo_documents
        most = pseudo or self.documents or math.inf
        predicted = min(text.held_out, most * _DOCUMENT_TOKENS)
        return text.tokens(predicted, _DOCUMENT_TOKENS)

    def columns(self, name: str, rungs: base.Rungs) -> list[base.Column]:
        # Perplexities over different tokenizers do not compare.
        one_tokenizer = len({rung.tokenizer for rung in rungs}) == 1
        return [
            base.compare_rungs(rungs, name, "bits_per_byte", name="bits per byte", meaning=_BITS),
            base.compare_rungs(rungs, name, "perplexity", ranked=one_tokenizer, name="perplexity"),
        ]

    def show(self, name: str, rungs: base.Rungs) -> None:
        return None


def held_out_texts(rung: base.Rung, end: int) -> Iterator[HeldOutText]:
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


def _read_lines(rung: base.Rung, paths: Paths, key: str, end: int) -> list[HeldOutText]:
    """The non-blank lines of all files. Raises DataError if there is none."""
    names, lines = [], []
    for file, number, line in base.read_lines(paths, key):
        if clean := CLEAN_UP.normalize_str(line):
            names.append(f"{file.name}:{number}")
            lines.append(clean)
    if not lines:
        raise DataError(f"{key}: expected lines of text, found only blank ones; change {key}")
    return [
        HeldOutText(name, [*ids, end], len(line.encode("utf-8")))
        for name, ids, line in zip(names, rung.encode(lines), lines, strict=True)
    ]


class RanksSuite(base.Suite):
    """Ranks of words of the held-out split among all words in their places, for models that give no
    probabilities (Turian et al. 2010, "Word representations", ACL)."""

    needs: ClassVar[str] = "scores of all words in the place of one"
    capability: ClassVar[type] = RanksWords
    of_held_out: ClassVar[bool] = True

    kind: Literal["ranks"] = "ranks"
    words: int = Field(default=1000, ge=1)  # held-out words to rank, evenly spread

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
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

    def columns(self, name: str, rungs: base.Rungs) -> list[base.Column]:
        return [base.compare_rungs(rungs, name, "log_rank", name=f"log rank ({name})")]


class SpeedSuite(base.Suite):
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

    def count_tokens(self, text: base.ExpectedText) -> float:
        return self.rounds * sum(text.tokens(length, length) for length in self.lengths)

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
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
