"""Sentence similarity: do cosines of sentence vectors rank pairs as people do?

    a pair and a score ──> mean of the states of each sentence ──> cosine ──> correlation

A sentence vector is the mean over its tokens in each layer, or over its words in a table, or the
model's own:

    layer 0, layer 1 ...    rungs with layers; 0 are the embeddings
    words                   rungs with a table of static word vectors
    own vector              rungs that pool or infer in their own way
    random words ...        what any of them must beat (`floor_vectors`)

Nothing is trained on the scores. Reads the STS benchmark (Cer et al. 2017, arXiv:1708.00055), STS
2012 to 2016, SICK, and any table of pairs with scores. Of several files, such as the sets of a
year, Pearson's r is also a mean over files, plain and weighted by their pairs.

Vectors of sentences, and the floors that a sentence encoder must beat.

    vectors        the model's own way, else the mean of its last layer, else of its word table
    untrained      the same model before training
    random words   the mean of a random vector for each token
    PPMI words     the mean of vectors from counts of the corpus: positive pointwise mutual
                   information of tokens within five, by singular value decomposition (Levy,
                   Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons
                   Learned from Word Embeddings")

Random word vectors are strong where two sentences are compared, for they measure how many words
both share. All is deterministic, and the same for all models of one corpus and tokenizer.

Shapes: N texts, V vocabulary, D size of a vector, E width.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from rungwise.core.errors import DataError
from rungwise.core.recent import Recent
from rungwise.core.storage.outside import list_matching_files
from rungwise.corpus.summary import read_split
from rungwise.evaluation.suites.base import FileSuite, Rung, SuiteResult, read_texts
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import Sentence, reads_words, word_reader
from rungwise.evaluation.suites.word_vectors import cosines
from rungwise.models.trained.capabilities import SentenceVectors
from rungwise.models.trained.contexts import StaticWords
from rungwise.tasks.formats.table import TableFormat
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Text

WORDS, OWN = "words", "own vector"  # the parts of the word table, and of a model's own way
VECTORS, UNTRAINED, RANDOM, PPMI = "vectors", "untrained", "random words", "PPMI words"
_SIZE = 200
_WINDOW = 5
_SMOOTHING = 0.75  # exponent of the counts of contexts
_MOST_CHARACTERS = 24_000_000  # of the corpus that is counted, about 4 M words

Vectors = NDArray[np.float64]
WORD_TABLES: Recent[dict[str, Vectors]] = Recent()  # a process measures one rung after another


def has_sentence_vectors(rung: Rung) -> bool:
    return reads_words(rung) or isinstance(rung.model, SentenceVectors)


def vectors_by_part(rung: Rung, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors (N, E) of sentences: of each layer, of the word table, the model's own."""
    vectors: dict[str, NDArray[np.float32]] = {}
    if reads_words(rung):
        reader, whole = word_reader(rung), [Sentence(text, ((0, len(text)),)) for text in texts]
        if not isinstance(reader.source, StaticWords):
            layers = reader.layers(whole).layers
            vectors = {f"layer {number}": layer for number, layer in enumerate(layers)}
        if reader.table is not None:
            static = replace(reader, source=StaticWords(reader.table))
            [vectors[WORDS]] = static.layers(whole).layers
    if isinstance(rung.model, SentenceVectors):
        vectors[OWN] = rung.model.sentence_vectors(rung.encode(texts))
    return {part: rows.astype(np.float64) for part, rows in vectors.items()}


def sentence_vectors(rung: Rung, texts: Sequence[str]) -> Vectors:
    """The vectors (N, E) of sentences that are a model's best: its own, or the last above."""
    if isinstance(rung.model, SentenceVectors):
        return rung.model.sentence_vectors(rung.encode(texts)).astype(np.float64)
    return [*vectors_by_part(rung, texts).values()][-1]


def floor_vectors(rung: Rung, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors (N, ...) of sentences by floor; a model without training has no `untrained`."""
    words = rung.corpus.fingerprint, rung.tokenizer.fingerprint
    tables = WORD_TABLES.get(words, lambda: _word_tables(rung))
    special = {*rung.special.ids}  # the unknown token among them
    ids = [[token for token in text if token not in special] for text in rung.encode(texts)]
    floors = {name: _means(table_VD, ids) for name, table_VD in tables.items()}
    if rung.untrained is not None:
        floors = {UNTRAINED: sentence_vectors(rung.untrained, texts), **floors}
    return floors


def _means(table_VD: Vectors, texts: Sequence[Sequence[int]]) -> Vectors:
    """The mean (N, D) of the rows of each text; zeros for a text of no tokens."""
    return np.stack([table_VD[list(ids)].sum(axis=0) / max(1, len(ids)) for ids in texts])


def _word_tables(rung: Rung) -> dict[str, Vectors]:
    vocab_size = rung.splitter.get_vocab_size()
    random_VD = np.random.default_rng(0).standard_normal((vocab_size, _SIZE))
    encoded = rung.encode_array([*_sentences(rung)])
    return {RANDOM: random_VD, PPMI: ppmi_vectors(encoded.ids, encoded.lengths, vocab_size)}


def _sentences(rung: Rung) -> Iterator[str]:
    """The sentences of the training split, up to `_MOST_CHARACTERS`."""
    room = _MOST_CHARACTERS
    for document in read_split(rung.corpus, "train"):
        yield from document.sentences
        room -= sum(map(len, document.sentences))
        if room <= 0:
            return


def ppmi_vectors(
    ids: NDArray[np.integer], lengths: NDArray[np.int64], vocab_size: int, size: int = _SIZE
) -> Vectors:
    """The vectors (V, size), U·sqrt(S), from the tokens of sentences of these lengths; zeros for a
    token that no other stands near."""
    from scipy import sparse  # takes a second
    from sklearn.utils.extmath import randomized_svd

    ids, sentence = ids.astype(np.int64), np.repeat(np.arange(len(lengths)), lengths)
    counts = sparse.csr_matrix((vocab_size, vocab_size))
    for distance in range(1, _WINDOW + 1):
        near = sentence[distance:] == sentence[:-distance]
        pair = ids[:-distance][near], ids[distance:][near]
        counts += sparse.coo_matrix((np.ones(len(pair[0])), pair), counts.shape).tocsr()
    cells = (counts + counts.T).tocoo()
    of_word = np.bincount(cells.row, cells.data, vocab_size)
    of_context = of_word**_SMOOTHING / max(1e-300, (of_word**_SMOOTHING).sum())
    information = np.log(cells.data / (of_word[cells.row] * of_context[cells.col]))
    above = information > 0
    place = cells.row[above], cells.col[above]
    matrix = sparse.csr_matrix((information[above], place), counts.shape)
    rank = min(size, vocab_size)
    vectors, values, _ = randomized_svd(matrix, rank, n_iter=4, random_state=0)  # pyright: ignore[reportArgumentType] its stub knows "auto"
    return vectors * np.sqrt(values)


class SentencesSuite(FileSuite):
    """Pairs of sentences with similarity scores."""

    needs: ClassVar[str] = "vectors of words or sentences"

    kind: Literal["sentences"] = "sentences"
    # a task format that has scores
    format: TableFormat

    @field_validator("format")
    @classmethod
    def _has_scores(cls, value: TableFormat) -> TableFormat:
        if not KINDS[value.task_kind].numeric:
            raise ValueError("expected pairs with scores, found a format with labels")
        return value

    def serves(self, rung: Rung) -> bool:
        return has_sentence_vectors(rung)

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        counts: Counter[str] = Counter()
        key = f"measure.{name}.path"
        pairs = self._pairs(key, counts)
        for reason, number in counts.items():
            rung.report.note(f"{name}: {reason.replace('_', ' ')}: {number:,}")
        texts = [text for pair in pairs for text in (pair.text, str(pair.second))]
        gold = np.array([float(str(pair.target)) for pair in pairs])
        names, several = (
            [pair.where for pair in pairs],
            len(list_matching_files(self.path, key)) > 1,
        )
        sets = [place.rpartition(":")[0] if several else "" for place in names]
        metrics = ("correlation", "pearson", *(["weighted_pearson"] if several else []))
        items = []
        for part, vectors in (vectors_by_part(rung, texts) | floor_vectors(rung, texts)).items():
            numbers = np.stack([gold, cosines(vectors[0::2], vectors[1::2])], axis=1)
            items += [Items(name, metric, names, sets, numbers, part) for metric in metrics]
        return SuiteResult(items)

    def _pairs(self, key: str, counts: Counter[str]) -> list[Text]:
        pairs = read_texts(self.path, self.format, "test", key, counts)
        if not pairs or any(pair.second is None or pair.target is None for pair in pairs):
            raise DataError(
                f"{key}: expected pairs of sentences with scores, found {len(pairs)} rows, not all "
                f"of them such pairs; change {key}, or which columns the format names"
            )
        return pairs
