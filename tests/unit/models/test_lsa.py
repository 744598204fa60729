"""LSA and PPMI-SVD against the first paper's example, gensim, formulas and human similarities."""

import gzip
import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gensim.models import LsiModel
from scipy import stats

from rungwise.core.configuration.config import validate
from rungwise.models.fitting import Solution
from rungwise.models.word_vectors.lsa import LsaConfig
from tests.conftest import text_of_words

# Deerwester et al. 1990, table 2: the words that stand in two titles or more.
TITLES = [
    "human interface computer",
    "survey user computer system response time",
    "eps user interface system",
    "system human system eps",
    "user response time",
    "trees",
    "graph trees",
    "graph minors trees",
    "graph minors survey",
]
NUMBER = {word: n for n, word in enumerate(dict.fromkeys(" ".join(TITLES).split()))}
PAPER = [[[NUMBER[word] for word in title.split()]] for title in TITLES]


def solve(
    config: LsaConfig, documents: list[list[list[int]]], minimum: int = 1, seed: int = 0
) -> Any:
    """The solution of one shard, whose model has all that the tests ask."""
    text = text_of_words(documents)
    counts_V = np.bincount(text.ids)
    counts_V[counts_V < minimum] = 0
    cells = config.cells(config.count(text, counts_V), len(counts_V))
    solution: Solution = config.solve(cells, counts_V, len(documents), seed)
    return solution


def test_the_titles_of_the_paper() -> None:
    """Their nine singular values, and gensim's tutorial for two: a query, and two titles."""
    nine = solve(LsaConfig(size=9, weighting="counts"), PAPER)
    values = [3.3409, 2.5417, 2.3539, 1.6445, 1.5048, 1.3064, 0.8459, 0.5601, 0.3637]
    np.testing.assert_allclose(nine.model.singular_values, values, atol=1e-4)
    assert nine.loss == pytest.approx(0.0, abs=1e-12)
    two = solve(LsaConfig(size=2, weighting="counts"), PAPER)
    query = two.model.sentence_vectors([[NUMBER["human"], NUMBER["computer"]]])[0]
    np.testing.assert_allclose(np.abs(query), [0.4618, 0.0700], atol=1e-4)
    for title, expected in ((0, [0.65946639, 0.14211544]), (7, [0.08063836, 1.56345594])):
        np.testing.assert_allclose(np.abs(two.documents[title]), expected, atol=1e-6)


def test_gensim_has_the_same_space() -> None:
    documents = random_documents()
    ours = solve(LsaConfig(size=5, weighting="counts"), documents)
    bags = [sorted(Counter(document[0]).items()) for document in documents]
    theirs: Any = LsiModel(bags, num_topics=5, power_iters=20, random_seed=1)
    np.testing.assert_allclose(ours.model.singular_values, theirs.projection.s, rtol=1e-6)
    left = theirs.projection.u
    signs = np.sign((left * ours.model.left).sum(axis=0))
    np.testing.assert_allclose(ours.model.left * signs, left, atol=1e-6)
    rows = np.array([[weight for _, weight in theirs[bag]] for bag in bags])
    np.testing.assert_allclose(ours.documents * signs, rows, atol=1e-5)


@pytest.mark.parametrize(
    "keys", [{"weighting": "counts"}, {"contexts": "window", "weighting": "ppmi"}]
)
def test_the_seed_does_not_move_the_vectors(keys: Any) -> None:
    """It begins the iteration, which ends at the largest singular values wherever it begins."""
    first, second = (solve(LsaConfig(size=5, **keys), random_documents(), seed=s) for s in (0, 1))
    for name, array in first.model.to_tensors().items():
        np.testing.assert_allclose(array, second.model.to_tensors()[name], atol=1e-6)


def random_documents() -> list[list[list[int]]]:
    rng = np.random.default_rng(0)
    return [[(40 * rng.random(60) ** 3).astype(int).tolist()] for _ in range(30)]


def slow_table(config: LsaConfig, documents: list[list[int]], V: int) -> Any:
    """The weighted table, cell by cell, by the formulas of the papers."""
    counts: Counter[tuple[int, int]] = Counter()
    for number, words in enumerate(documents):
        for place, word in enumerate(words):
            if config.contexts == "documents":
                counts[word, number] += 1
                continue
            near = range(max(0, place - config.window), place + config.window + 1)
            counts.update((word, words[n]) for n in near if n != place and n < len(words))
    rows, columns = Counter[int](), Counter[int]()
    for (row, column), count in counts.items():
        rows[row] += count
        columns[column] += count
    C = len(documents) if config.contexts == "documents" else V
    table = np.zeros((V, C))
    smooth = {column: count**config.smoothing for column, count in columns.items()}
    for (row, column), x in counts.items():
        table[row, column] = x
        if config.weighting == "log_entropy":
            shares = [counts[row, other] / rows[row] for other in columns]
            entropy = -sum(p * math.log(p) for p in shares if p)
            table[row, column] = math.log2(1 + x) * (1 - entropy / math.log(C))
        if config.weighting == "ppmi":
            chance = smooth[column] / sum(smooth.values())
            pmi = math.log(x / rows[row] / chance)
            table[row, column] = max(0.0, pmi - math.log(config.shift))
    return table


@pytest.mark.parametrize(
    "keys",
    [
        {"weighting": "counts"},
        {"weighting": "log_entropy"},
        {"contexts": "window", "weighting": "counts", "window": 2},
        {"contexts": "window", "weighting": "log_entropy", "window": 3},
        {"contexts": "window", "weighting": "ppmi", "window": 2, "shift": 1.2},
        {"contexts": "window", "weighting": "ppmi", "window": 4, "smoothing": 1.0, "exponent": 1},
    ],
    ids=str,
)
def test_the_table_is_that_of_the_formulas_and_texts_are_its_columns(keys: Any) -> None:
    """By U S² Uᵀ = X Xᵀ, which no sign changes; sentences of a document are one text."""
    rng = np.random.default_rng(1)
    documents = [(9 * rng.random(25) ** 2).astype(int).tolist() for _ in range(12)]
    config = validate(LsaConfig, keys | {"size": 9})
    model = solve(config, [[words[:11], words[11:]] for words in documents]).model
    table = slow_table(config, documents, 9)
    left, values = model.left, model.singular_values
    np.testing.assert_allclose((left * values**2) @ left.T, table @ table.T, atol=2e-5)
    scale = np.linalg.norm(model.table) / np.linalg.norm(left * values**config.exponent)
    np.testing.assert_allclose(model.table, left * values**config.exponent * scale, atol=1e-5)
    assert (model.table**2).sum(axis=1).mean() == pytest.approx(1.0, 1e-5)
    if config.contexts == "documents":
        vectors = model.sentence_vectors(documents)
        np.testing.assert_allclose(vectors, table.T @ left, atol=1e-5)
    restored = config.from_tensors(model.to_tensors(), None)  # pyright: ignore[reportArgumentType]
    assert np.array_equal(restored.sentence_vectors(documents), model.sentence_vectors(documents))


@pytest.mark.slow
def test_words_near_in_meaning_are_near_on_the_brown_corpus(real_data: Path) -> None:
    """WordSim-353 by windows of five on 12,000 words: another program gave .439."""
    folder = real_data / "corpora" / "en" / "brown"
    text = gzip.decompress((folder / "brown.txt.gz").read_bytes()).decode().lower()
    documents = [document.split() for document in text.strip().split("\n\n")]
    common = Counter(itertools.chain(*documents)).most_common(12_000)
    number = {word: place for place, (word, _) in enumerate(common)}
    ids = [[[number[word] for word in words if word in number]] for words in documents]
    model = solve(LsaConfig(contexts="window", weighting="ppmi"), ids).model
    lines = (real_data / "wordsim" / "wordsim353.tsv").read_text("utf-8").lower().splitlines()
    rows = [line.split("\t")[-3:] for line in lines if not line.startswith("#")]
    pairs = [(a, b, float(score)) for a, b, score in rows if a in number and b in number]
    assert len(pairs) == 260
    unit = model.table / np.linalg.norm(model.table, axis=1, keepdims=True)
    cosines = [unit[number[a]] @ unit[number[b]] for a, b, _ in pairs]
    rho, _ = stats.spearmanr([score for *_, score in pairs], cosines)
    assert rho == pytest.approx(0.439, abs=0.02)
