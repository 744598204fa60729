"""Several prototypes per word: the base with one, two words joined into one told apart again."""

import gzip
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.models.trained.encoders import StaticWords
from rungwise.models.word_vectors.lsa import LsaConfig, PrototypesConfig, PrototypesModel
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_config
from rungwise.tokenizer.token_text import TokenisedText
from tests.conftest import SPECIAL_IDS, small_recipe, text_of_words

V, D = 40, 12


def text_of(documents: list[list[int]]) -> TokenisedText:
    hashes = np.arange(len(documents), dtype=np.uint64) * 7919
    return text_of_words([[words] for words in documents], documents=hashes)


def random_text(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [(V * rng.random(60) ** 2).astype(int).tolist() for _ in range(30)]


def refine(config: PrototypesConfig, documents: list[list[int]], vectors: Any) -> PrototypesModel:
    text = text_of(documents)
    counts_V = np.bincount(text.ids, minlength=len(vectors))
    model = config.refine(vectors, config.count(text, counts_V), counts_V, 0).model
    assert isinstance(model, PrototypesModel)
    return model


def test_one_prototype_is_the_vector_that_was_given() -> None:
    documents = random_text(0)
    vectors = np.random.default_rng(1).normal(size=(V, D)).astype(np.float32)
    model = refine(PrototypesConfig(prototypes=1, occurrences=20), documents, vectors)
    assert (model.rows >= 0).sum() > 10
    words = [[range(1), range(5, 7)], [], [range(59, 60)]]
    static, chosen = model.word_layers(documents[:3], words)
    np.testing.assert_allclose(chosen, static, atol=1e-5)
    assert np.array_equal(static, StaticWords(model).word_layers(documents[:3], words)[0])
    assert np.array_equal(model.vectors(range(V)), vectors)


def test_the_mean_of_the_prototypes_is_the_vector_and_the_nearest_centre_is_chosen() -> None:
    documents = random_text(2)
    vectors = np.random.default_rng(3).normal(size=(V, D)).astype(np.float32)
    config = PrototypesConfig(prototypes=3, occurrences=60, samples=10_000, window=2)
    model = refine(config, documents, vectors)
    word = int(np.flatnonzero(model.rows >= 0)[0])
    places = [(text, n) for text in documents for n, each in enumerate(text) if each == word]
    chosen = np.concatenate(
        [model.word_layers([text], [[range(n, n + 1)]])[1] for text, n in places]
    )
    prototypes = model.prototypes(word)
    number = np.array([np.abs(prototypes - row).sum(axis=1).argmin() for row in chosen])
    assert np.allclose(chosen, prototypes[number], atol=1e-5)
    assert sorted(set(number.tolist())) == [0, 1, 2]
    share = np.bincount(number) / len(number)
    # Lloyd's algorithm ends where the clusters are those of the nearest centres.
    np.testing.assert_allclose(share @ prototypes, vectors[word], atol=1e-5)
    # By hand: the weighted mean of two neighbours a side, without the word itself.
    text, n = places[5]
    counts = np.bincount(np.concatenate(documents), minlength=V)
    near = [text[m] for m in range(max(0, n - 2), min(len(text), n + 3)) if m != n]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    context = sum(1e-3 / (1e-3 + counts[each] / counts.sum()) * unit[each] for each in near)
    centres = model.centres[model.rows[word]]
    distances = np.linalg.norm(centres - context / np.linalg.norm(context), axis=1)
    assert distances.argmin() == number[5]


PAIRS = "eyes president,church feet,door percent,government hair,music river,john million"
PAIRS += ",university water,god inches"


@pytest.mark.slow
def test_two_words_joined_into_one_are_told_apart_by_their_contexts(real_data: Path) -> None:
    """Eight pseudo-words in Brown, mapped by half of the occurrences."""
    folder = real_data / "corpora" / "en" / "brown"
    lines = gzip.decompress((folder / "brown.txt.gz").read_bytes()).decode().lower()
    documents = [document.split() for document in lines.strip().split("\n\n")]
    common = Counter(itertools.chain(*documents)).most_common(8000)
    number = {word: place for place, (word, _) in enumerate(common)}
    joined = [pair.split() for pair in PAIRS.split(",")]
    for first, second in joined:
        number[second] = number[first]
    known = [[word for word in words if word in number] for words in documents]
    ids = [[number[word] for word in words] for words in known]
    text = text_of(ids)
    counts_V = np.bincount(text.ids, minlength=8000)
    base = LsaConfig(contexts="window", weighting="ppmi", exponent=0.5)
    cells = base.cells(base.count(text, counts_V), 8000)
    solved: Any = base.solve(cells, counts_V, len(ids), 0).model
    vectors = solved.vectors(range(8000))
    config = PrototypesConfig(window=20, samples=1000)
    pseudo = [number[first] for first, _ in joined]
    contexts = config.count(text, np.where(np.isin(np.arange(8000), pseudo), counts_V, 0))
    model = config.refine(vectors, contexts, counts_V, 0).model
    assert isinstance(model, PrototypesModel)
    shares = []
    for pair in joined:
        words = [[range(n, n + 1) for n, word in enumerate(each) if word in pair] for each in known]
        is_first = np.array([word == pair[0] for each in known for word in each if word in pair])
        chosen = model.word_layers(ids, words)[1]
        prototypes = model.prototypes(number[pair[0]])
        which = np.abs(chosen[:, None] - prototypes).sum(axis=2).argmin(axis=1)
        votes = np.zeros((10, 2))
        np.add.at(votes, (which[::2], is_first[::2].astype(int)), 1)
        right = votes.argmax(axis=1)[which[1::2]] == is_first[1::2]
        shares.append(float(right.mean()))
    assert min(shares) > 0.8
    assert np.mean(shares) > 0.9, shares


def test_the_model_survives_as_tensors_and_little_text_is_refused() -> None:
    documents = random_text(4)
    vectors = np.random.default_rng(1).normal(size=(V, D)).astype(np.float32)
    config = PrototypesConfig(prototypes=2, occurrences=20)
    model = refine(config, documents, vectors)
    restored = config.from_tensors(load(save(model.to_tensors())), SPECIAL_IDS)
    words = [[range(n, n + 1) for n in range(60)]]
    assert np.array_equal(
        restored.word_layers(documents[:1], words), model.word_layers(documents[:1], words)
    )
    with pytest.raises(DataError, match=r"has 5000 times, found none .* model\.occurrences"):
        refine(PrototypesConfig(occurrences=5000), documents, vectors)


def test_the_vectors_are_those_of_the_step_before() -> None:
    recipe = small_recipe(Path("artifacts"), Path("corpus.txt")) | {
        "model": {"kind": "prototypes"},
        "pretrain": {"kind": "cooccurrence"},
    }
    base = {"name": "x", "model": {"kind": "lsa"}, "pretrain": {"kind": "cooccurrence"}}
    assert pretrain_config(validate(Recipe, recipe | {"steps": [base, {}]}))
    counts = base | {"model": {"kind": "ngram"}, "pretrain": {"kind": "counts"}}
    for steps in ([], [counts, {}]):
        with pytest.raises(ConfigError, match=r"made on the vectors of the step before") as refused:
            pretrain_config(validate(Recipe, recipe | {"steps": steps}))
        assert pretrain_config(validate(Recipe, recipe | refused.value.changes))
