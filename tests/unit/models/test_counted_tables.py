"""Tables of shards add up to that of the whole text, in any grouping."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.models.word_vectors.lsa import LsaConfig, PrototypesConfig
from rungwise.models.word_vectors.word2vec import GloveConfig
from tests.conftest import text_of_words

V, DOCUMENTS = 12, 8
SUMS, CONTEXTS = ("keys", "sums"), ("words", "draws", "neighbours")
CASES = {
    "lsa-documents": (LsaConfig(size=2, weighting="counts"), SUMS),
    "lsa-window": (LsaConfig(contexts="window", size=2, weighting="counts"), SUMS),
    "glove": (GloveConfig(window=3), SUMS),
    "prototypes": (PrototypesConfig(prototypes=2, occurrences=4, samples=3), CONTEXTS),
}


@pytest.mark.parametrize(("config", "names"), CASES.values(), ids=CASES)
@given(seed=st.integers(0, 1 << 32), pieces=st.integers(1, 5))
def test_tables_of_shards_add_up_in_any_grouping(
    config: Any, names: tuple[str, ...], seed: int, pieces: int
) -> None:
    rng = np.random.default_rng(seed)
    documents = [
        [rng.integers(0, V, length).tolist() for length in rng.integers(1, 9, rng.integers(1, 4))]
        for _ in range(DOCUMENTS)
    ]
    hashes = np.arange(DOCUMENTS, dtype=np.uint64) * 7919
    whole_text = text_of_words(documents, documents=hashes)
    counts_V = np.bincount(whole_text.ids, minlength=V)
    counts_V[counts_V < 4] = 0
    cuts = sorted({0, DOCUMENTS, *rng.integers(0, DOCUMENTS, pieces).tolist()})
    tables = [
        config.count(
            text_of_words(documents[a:b], first_document=a, documents=hashes[a:b]), counts_V
        )
        for a, b in itertools.pairwise(cuts)
    ]
    parts = zip(*(config.split(table, 3) for table in reversed(tables)), strict=True)
    merged = config.merge([config.merge(part) for part in parts])
    whole = config.count(whole_text, counts_V)
    for name in names:
        assert np.array_equal(getattr(merged, name), getattr(whole, name))
    if isinstance(config, PrototypesConfig):
        assert np.bincount(whole.words).max(initial=0) <= config.samples
