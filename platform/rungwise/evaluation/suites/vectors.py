"""Vectors of words and of sentences: do their cosines rank pairs as people do, do words complete
analogies, and what can a classifier read off sentences?

Items with words that a rung does not know are left out, and the share of the others is the part
`known`. Beside sentences stand floors that an encoder must beat: the same model before training,
and the mean of a random vector for each token.

Shapes: N words or texts, Q questions, V vocabulary, D or E width, F features.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.errors import DataError, explain_connection_errors
from rungwise.core.storage.source_files import Paths, SourceFile, list_matching_files
from rungwise.corpus.summary import count_units
from rungwise.evaluation.suites import base, classifiers
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import Sentence, reads_words, word_reader
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import SentenceVectors, WordVectors
from rungwise.models.trained.encoders import StaticWords
from rungwise.tasks.config import TaggedFormat
from rungwise.tasks.formats.base import quote, read_text, split_lines
from rungwise.tasks.formats.texts import TableFormat
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Text
from rungwise.tokenizer import ids_after_blank

Vectors = NDArray[np.float64]
KNOWN = "known"  # the part with the share of known items
FEWEST = 3  # pairs; with two, rho is 1 or -1
_SEPARATORS = ("\t", ",", ";")  # else blanks
_CELLS = 1 << 24  # cosines held at a time
WORDS, OWN = "words", "own vector"  # the parts of the word table, and of a model's own way
VECTORS, UNTRAINED, RANDOM = "vectors", "untrained", "random words"
_SIZE = 200  # of random vectors
MAJORITY = "most frequent"  # the part that predicts without any vector
_LENGTHS = 6  # classes of sentences
_FEWEST_WORDS = 5  # of a sentence whose words are swapped
Split = tuple[classifiers.Places, classifiers.Places]  # the training and the test places
Words = Sequence[str]  # of a sentence
Examples = list[tuple[Words, str]]  # sentences, each with its class


def word_pieces(rung: base.Rung, words: Sequence[str]) -> list[list[int]]:
    """The ids of each word with or without a space before it, whichever gives fewer pieces."""
    alone, behind = rung.encode(words), ids_after_blank(rung.splitter, words)
    return [min(second, first, key=len) for first, second in zip(alone, behind, strict=True)]


def word_vectors(rung: base.Rung, words: Sequence[str]) -> tuple[Vectors, NDArray[np.bool_]]:
    """The vectors (N, D) of words, means over pieces that are learnt, and which (N,) have any such
    piece and are known; unknown ones have zeros."""
    pieces = word_pieces(rung, words)
    flat = [piece for each in pieces for piece in each]
    vectors = rung.model.vectors(flat).astype(np.float64)
    known = vectors.any(axis=1) & ~np.isin(flat, list(rung.special.ids))
    owner = np.repeat(np.arange(len(words)), [len(each) for each in pieces])[known]
    sums = np.zeros((len(words), vectors.shape[1]))
    np.add.at(sums, owner, vectors[known])
    counts = np.bincount(owner, minlength=len(words))
    return sums / np.maximum(counts, 1)[:, None], counts > 0


def cosines(first: Vectors, second: Vectors) -> Vectors:
    """Row-wise cosines (N,) of two (N, D) arrays; 0 for zero vectors."""
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.where(sizes == 0, 1.0, sizes)


class _WordsSuite(base.FileSuite):
    needs: ClassVar[str] = "one vector per word"
    capability: ClassVar[type] = WordVectors


class SimilaritySuite(_WordsSuite):
    """Files with two words per line and, in the first later column of numbers, their score, as
    published: separated by tabs, commas, semicolons or blanks, with or without a header; `#` begins
    a comment."""

    kind: Literal["similarity"] = "similarity"

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        items: list[Items] = []
        key = f"measure.{name}.path"
        sets: dict[str, str] = {}
        for file in list_matching_files(self.path, key):
            part = file.name.rpartition("/")[2].partition(".")[0]
            other = sets.setdefault(part, file.uri)
            if other != file.uri:
                raise DataError(
                    f"{key}: expected a name of its own for each set, found {part} (up to "
                    f"the first dot) of {other} and of {file.uri}; rename one"
                )
            with explain_connection_errors(file.uri, key):
                pairs = read_pairs(file, key)
            first, knows_first = word_vectors(rung, [pair.text for pair in pairs])
            second, knows_second = word_vectors(rung, [str(pair.second) for pair in pairs])
            known = knows_first & knows_second
            names, groups = [pair.where for pair in pairs], [""] * len(pairs)
            if known.sum() >= FEWEST:
                gold = np.array([pair.number for pair in pairs])
                numbers = np.stack([gold, cosines(first, second)], axis=1)
                rated = Items(name, "correlation", names, groups, numbers, part)
                items.append(rated.select(np.flatnonzero(known).tolist()))
            items.append(Items.of_credit(name, f"{part} {KNOWN}", names, groups, known))
        return items

    def rated_pairs(self, key: str) -> dict[str, list[frozenset[str]]]:
        """The pairs of words by file name, whatever their order and case."""
        files = list_matching_files(self.path, f"{key}.path")
        pairs = {file.name: read_pairs(file, f"{key}.path") for file in files}
        return {
            name: [frozenset(map(str.lower, each.parts)) for each in own]
            for name, own in pairs.items()
        }

    def columns(self, name: str, rungs: base.Rungs) -> list[base.Column]:
        """The correlation on the set with the most pairs, the first of equals."""
        rows = [row for rung in rungs for row in rung.scores(name) if row.metric == "correlation"]
        part = max(rows, key=lambda row: row.count).part if rows else ""
        return [base.compare_rungs(rungs, name, "correlation", part)]


def read_pairs(file: SourceFile, key: str) -> list[Text]:
    """Read a set of pairs of words, each with how alike people find them. Raises DataError, naming
    `key`, for a line that is no pair."""
    lines = enumerate(split_lines(read_text(file)), start=1)
    lines = [each for each in lines if each[1].strip() and not each[1].startswith("#")]
    separator = next((mark for mark in _SEPARATORS if lines and mark in lines[0][1]), None)
    rows = [(number, [c.strip() for c in line.split(separator)]) for number, line in lines]
    last = rows[-1][1] if rows else []
    score = next((n for n, cell in enumerate(last) if n > 1 and _is_number(cell)), 2)
    if rows and not any(map(_is_number, rows[0][1][score : score + 1])):
        rows = rows[1:]  # names of the columns
    if not rows:
        raise DataError(f"{file.uri}: expected pairs of words, found none; change {key}")
    pairs = []
    for number, cells in rows:
        if len(cells) <= score or not all(cells[:2]) or not _is_number(cells[score]):
            raise DataError(
                f"{file.uri}:{number}: expected two words and a score in column {score + 1}, found "
                f"{quote(' | '.join(cells))}; mend the line, or change {key}"
            )
        pairs.append(Text(f"{file.name}:{number}", cells[0], cells[1], float(cells[score])))
    return pairs


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


@dataclass(frozen=True)
class Analogy:
    """Four words; `where` is the file and the line."""

    where: str
    section: str
    words: tuple[str, str, str, str]


class AnalogiesSuite(_WordsSuite):
    """Files of analogy questions: a is to b as c is to which word? By 3CosAdd (Mikolov et al. 2013,
    arXiv:1301.3781) on unit vectors, among words that are a single piece."""

    kind: Literal["analogies"] = "analogies"

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        questions = read_questions(self.path, f"measure.{name}.path")
        ids = _word_ids(rung, sorted({word for each in questions for word in each.words}))
        known = np.array([all(word in ids for word in each.words) for each in questions])
        names, groups = [each.where for each in questions], [each.section for each in questions]
        shares = Items.of_credit(name, KNOWN, names, groups, known)
        if not known.any():
            return [shares]
        places = np.flatnonzero(known).tolist()
        ids_Q4 = np.array([[ids[word] for word in questions[place].words] for place in places])
        # Unit vectors; zeros for special tokens and tokens without a vector.
        vectors_VD = rung.model.vectors(range(rung.model.vocab_size))
        lengths_V1 = np.linalg.norm(vectors_VD, axis=1, keepdims=True)
        directions_VD = vectors_VD / np.where(lengths_V1 == 0, 1, lengths_V1)
        directions_VD[list(rung.special.ids)] = 0
        right = np.zeros(len(questions))
        right[places] = answer_analogies(directions_VD, ids_Q4[:, :3]) == ids_Q4[:, 3]
        items = Items.of_credit(name, "", names, groups, right).select(places)
        return [items, shares]


def answer_analogies(
    directions_VD: NDArray[np.floating], ids_Q3: NDArray[np.integer]
) -> NDArray[np.intp]:
    """The answers (Q,) to questions of three ids, by unit vectors; rows of zeros are excluded."""
    excluded_V = ~directions_VD.any(axis=1)
    answers = []
    for part_Q3 in np.array_split(ids_Q3, -(-len(ids_Q3) * len(directions_VD) // _CELLS)):
        a_QD, b_QD, c_QD = directions_VD[part_Q3.T]
        cosines_QV = (b_QD - a_QD + c_QD) @ directions_VD.T
        cosines_QV[:, excluded_V] = -np.inf
        np.put_along_axis(cosines_QV, part_Q3, -np.inf, axis=1)
        answers.append(cosines_QV.argmax(axis=1))
    return np.concatenate(answers)


def read_questions(paths: Paths, key: str) -> list[Analogy]:
    """Read all files; `key` names the paths in errors. Raises DataError for a malformed line."""
    questions, section = [], ""
    for file, number, line in base.read_lines(paths, key):
        if number == 1:
            section = ""
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        match line.split():
            case [a, b, c, d] if section:
                questions.append(Analogy(f"{file.name}:{number}", section, (a, b, c, d)))
            case []:
                pass
            case words:
                raise DataError(
                    f"{file.uri}:{number}: expected four words below a line `: section`, found "
                    f"{len(words)} {'in' if section else 'above'} it; mend the file, or change "
                    f"{key}"
                )
    if not questions:
        raise DataError(f"{key}: expected questions, found none; change {key}")
    return questions


def _word_ids(rung: base.Rung, words: Sequence[str]) -> dict[str, int]:
    """The id of each word that is a single piece with a vector."""
    single = {
        word: pieces[0]
        for word, pieces in zip(words, word_pieces(rung, words), strict=True)
        if len(pieces) == 1 and pieces[0] not in rung.special.ids
    }
    has_vector = rung.model.vectors(list(single.values())).any(axis=1) if single else []
    return dict(itertools.compress(single.items(), has_vector))


def vectors_by_part(rung: base.Rung, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors (N, E) of sentences: of each layer, of the word table, the model's own."""
    vectors: dict[str, NDArray[np.float32]] = {}
    if reads_words(rung):
        reader, whole = word_reader(rung), [Sentence(text, ((0, len(text)),)) for text in texts]
        if not isinstance(reader.source, StaticWords):
            layers = reader.layers(whole)
            vectors = {f"layer {number}": layer for number, layer in enumerate(layers)}
        if isinstance(rung.model, WordVectors):
            static = replace(reader, source=StaticWords(rung.model))
            [vectors[WORDS]] = static.layers(whole)
    if isinstance(rung.model, SentenceVectors):
        vectors[OWN] = rung.model.sentence_vectors(rung.encode(texts))
    return {part: rows.astype(np.float64) for part, rows in vectors.items()}


def sentence_vectors(rung: base.Rung, texts: Sequence[str]) -> Vectors:
    """The vectors (N, E) of sentences that are a model's best: its own, or the last above."""
    if isinstance(rung.model, SentenceVectors):
        return rung.model.sentence_vectors(rung.encode(texts)).astype(np.float64)
    return [*vectors_by_part(rung, texts).values()][-1]


def floor_vectors(rung: base.Rung, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors (N, ...) of sentences by floor; a model without training has no `untrained`."""
    table_VD = draw_vectors(rung.splitter.get_vocab_size())
    special = {*rung.special.ids}  # the unknown token among them
    ids = [[token for token in text if token not in special] for text in rung.encode(texts)]
    means = np.stack([table_VD[own].sum(axis=0) / max(1, len(own)) for own in ids])
    if rung.untrained is None:
        return {RANDOM: means}
    return {UNTRAINED: sentence_vectors(rung.untrained, texts), RANDOM: means}


def draw_vectors(vocab_size: int, seed: int = 0) -> Vectors:
    """A random vector of each token."""
    return np.random.default_rng(seed).standard_normal((vocab_size, _SIZE))


class _SentenceSuite(base.Suite):
    needs: ClassVar[str] = "vectors of words or sentences"

    def serves(self, rung: base.Rung) -> bool:
        return reads_words(rung) or isinstance(rung.model, SentenceVectors)


class SentencesSuite(_SentenceSuite, base.FileSuite):
    """Pairs of sentences with similarity scores."""

    kind: Literal["sentences"] = "sentences"
    # a task format that has scores
    format: TableFormat

    @field_validator("format")
    @classmethod
    def _has_scores(cls, value: TableFormat) -> TableFormat:
        if not KINDS[value.task_kind].numeric:
            raise ValueError("expected pairs with scores, found a format with labels")
        return value

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        counts: Counter[str] = Counter()
        key = f"measure.{name}.path"
        pairs = base.read_examples(self.path, self.format, "test", key, counts)
        if not pairs or any(pair.second is None or pair.target is None for pair in pairs):
            raise DataError(
                f"{key}: expected pairs of sentences with scores, found {len(pairs)} rows, not all "
                f"of them such pairs; change {key}, or which columns the format names"
            )
        for reason, number in counts.items():
            rung.report.note(f"{name}: {reason.replace('_', ' ')}: {number:,}")
        texts = [text for pair in pairs for text in (pair.text, str(pair.second))]
        gold = np.array([float(str(pair.target)) for pair in pairs])
        names = [pair.where for pair in pairs]
        several = len(list_matching_files(self.path, key)) > 1
        sets = [place.rpartition(":")[0] if several else "" for place in names]
        items = []
        for part, vectors in (vectors_by_part(rung, texts) | floor_vectors(rung, texts)).items():
            numbers = np.stack([gold, cosines(vectors[0::2], vectors[1::2])], axis=1)
            items += [
                Items(name, metric, names, sets, numbers, part)
                for metric in ("correlation", "pearson")
            ]
        return items


class _ProbeOfVectors(_SentenceSuite):
    """The keys that both probes share, whose protocol is SentEval's (Conneau and Kiela 2018,
    arXiv:1803.05449)."""

    # ridge: quick, in closed form; logistic: the penalty is chosen on folds
    head: Literal["ridge", "logistic"] = "ridge"
    folds: int = Field(default=10, ge=2)

    def classify(
        self,
        name: str,
        features: Mapping[str, classifiers.Vectors],
        names: list[str],
        labels: Sequence[str],
        splits: Sequence[Split] | None,
        kind: str = "",
    ) -> list[Items]:
        """Items of accuracy by part, of all test places of the splits; by default, of folds."""
        classes_N = classifiers.number_classes(classifiers.by_frequency(labels), labels)
        splits = classifiers.folds(classes_N, self.folds) if splits is None else splits
        right: dict[str, list[NDArray[np.bool_]]] = defaultdict(list)
        for train, test in splits:
            frequent = np.bincount(classes_N[train]).argmax()
            right[MAJORITY].append(classes_N[test] == frequent)
            for part, vectors_NF in features.items():
                data = vectors_NF[train], classes_N[train], vectors_NF[test]
                if self.head == "ridge":
                    answers = classifiers.by_ridge(*data)
                else:
                    answers = classifiers.by_best_line(*data, self.folds)
                right[part].append(answers == classes_N[test])
        test_names = [names[place] for _, test in splits for place in test.tolist()]
        groups = [""] * len(test_names)
        return [
            Items.of_credit(name, f"{kind} {part}".strip(), test_names, groups, np.concatenate(own))
            for part, own in right.items()
        ]


class SentenceProbeSuite(_ProbeOfVectors):
    """Labelled or scored texts or pairs: what a classifier can read off the vectors."""

    reads: ClassVar[tuple[str, ...]] = ("train", "test")

    kind: Literal["sentence_probe"] = "sentence_probe"
    train: Paths  # files of examples
    test: Paths | None = None  # files to test on; null: folds of `train`
    format: TaggedFormat  # format of these files, as in the data of a task
    examples: int | None = Field(default=None, ge=20)  # of each split, evenly spread; null: all

    @field_validator("format")
    @classmethod
    def _has_a_target(cls, value: TaggedFormat) -> TaggedFormat:
        kind = KINDS[value.task_kind]
        if not kind.one_label and not kind.numeric:
            raise ValueError(f"expected texts with a class or a score, found {value.task_kind}")
        return value

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        parts = [self._read(key, name) for key in ("train", "test") if getattr(self, key)]
        names = [name for part in parts for name, _ in part]
        texts = [text for part in parts for _, text in part]
        features = _features(rung, texts)
        count = len(parts[0])
        splits = [(np.arange(count), np.arange(count, len(names)))] if len(parts) > 1 else None
        if KINDS[self.format.task_kind].one_label:
            labels = [str(text.target) for text in texts]
            return self.classify(name, features, names, labels, splits)
        scores_N = np.array([float(str(text.target)) for text in texts])
        splits = splits or classifiers.folds(np.zeros(len(names), np.int64), self.folds)
        places = np.concatenate([test for _, test in splits])
        names = [names[place] for place in places.tolist()]
        items = []
        for part, vectors_NF in features.items():
            predicted = [
                classifiers.to_scores(vectors_NF[train], scores_N[train], vectors_NF[test])
                for train, test in splits
            ]
            flat = np.concatenate(predicted).astype(np.float64)
            numbers = np.stack([scores_N[places], flat], axis=1)
            items.append(Items(name, "pearson", names, [""] * len(names), numbers, part))
        return items

    def columns(self, name: str, rungs: base.Rungs) -> list[base.Column]:
        """Accuracy or a correlation, beside the highest value of random vectors."""
        columns = []
        for metric in ("accuracy", "pearson"):
            scores = [s for r in rungs if (s := r.measure.value(name, metric, RANDOM))]
            best = max((score.value for score in scores), default=None)
            floors = {} if best is None else {f"{RANDOM}, averaged": best}
            columns.append(base.compare_rungs(rungs, name, metric, VECTORS, floors=floors))
        return columns

    def _read(self, split: str, name: str) -> list[tuple[str, Text]]:
        key = f"measure.{name}.{split}"
        rows = base.read_examples(getattr(self, split), self.format, split, key, Counter())
        rows = [row for row in rows if row.target is not None]
        if not rows:
            raise DataError(f"{key}: expected texts with a class or a score, found none")
        if self.examples is not None:
            rows = [rows[place] for place in evenly(len(rows), self.examples)]
        return [(f"{split} {row.where}", row) for row in rows]


def _features(rung: base.Rung, texts: Sequence[Text]) -> Mapping[str, classifiers.Vectors]:
    """Return the features of a classifier (N, F), by part; all texts are pairs or none is."""
    pairs = texts[0].second is not None
    flat = [each for text in texts for each in (text.text, text.second) if each is not None]
    vectors = {VECTORS: sentence_vectors(rung, flat), **floor_vectors(rung, flat)}
    if not pairs:
        return vectors
    return {part: pair_features(rows[0::2], rows[1::2]) for part, rows in vectors.items()}


def pair_features(u_NE: classifiers.Vectors, v_NE: classifiers.Vectors) -> classifiers.Vectors:
    """Return |u - v| and u*v, (N, 2E): symmetric, as in SentEval."""
    return np.concatenate([np.abs(u_NE - v_NE), u_NE * v_NE], axis=1)


class SentencePropertiesSuite(_ProbeOfVectors):
    """Held-out sentences: can a classifier read length and order off the vectors (after Conneau et
    al. 2018, arXiv:1805.01070)?"""

    of_held_out: ClassVar[bool] = True

    kind: Literal["sentence_properties"] = "sentence_properties"
    sentences: int = Field(default=3000, ge=100)  # of each property, at most

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        blank, sentences = _read_sentences(rung)
        items: list[Items] = []
        for kind, make in PROPERTIES.items():
            examples = make(sentences)
            texts = [blank.join(words) for words, _ in examples]
            labels = [label for _, label in examples]
            if len(set(labels)) < 2 or len(texts) < 2 * self.folds:
                raise DataError(
                    f"measure.{name}: expected held-out sentences to tell their {kind}, found "
                    f"{len(texts)}; raise corpus.held_out_fraction, or leave the suite out"
                )
            places = evenly(len(texts), self.sentences).tolist()
            texts, labels = [texts[n] for n in places], [labels[n] for n in places]
            features = {VECTORS: sentence_vectors(rung, texts), **floor_vectors(rung, texts)}
            numbers = [f"{kind} {place}" for place in places]
            items += self.classify(name, features, numbers, labels, None, kind)
        return items


def _read_sentences(rung: base.Rung) -> tuple[str, list[list[str]]]:
    """The joiner of words, "" in writing without blanks, and held-out sentences as words."""
    sentences = [sentence for _, document in rung.held_out for sentence in document.sentences]
    words = [each.split() for each in sentences]
    _, unit = count_units(sum(map(len, words)), sum(map(len, sentences)))
    return (" ", words) if unit == "words" else ("", [*map(list, sentences)])


def lengths(sentences: Sequence[Words]) -> Examples:
    """Class sentences by their number of words, in six classes of equal size."""
    sizes = np.array([len(each) for each in sentences])
    bounds = np.unique(np.quantile(sizes, np.arange(1, _LENGTHS) / _LENGTHS))
    classes = np.searchsorted(bounds, sizes).tolist()
    return [(each, str(number)) for each, number in zip(sentences, classes, strict=True)]


def order(sentences: Sequence[Words]) -> Examples:
    """Class every other sentence of at least five words as swapped: two neighbours drawn at random
    change places."""
    rng, examples = np.random.default_rng(0), []
    for number, each in enumerate(s for s in sentences if len(s) >= _FEWEST_WORDS):
        row, place = list(each), int(rng.integers(len(each) - 1))
        if number % 2:
            row[place : place + 2] = row[place + 1], row[place]
        examples.append((row, "swapped" if number % 2 else "as written"))
    return examples


PROPERTIES = {"length": lengths, "order": order}
