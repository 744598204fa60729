"""Paragraph vectors against gradients of their loss, gensim's arithmetic and cases by hand;
tests/reference/test_paragraph_vectors_parity.py has gensim as a whole.

V vocabulary, N documents, P size of a vector in memory, K noise words
"""

import importlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from gensim.models.doc2vec import Doc2Vec, TaggedDocument
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rungwise.core.configuration.config import validate
from rungwise.models import kernels
from rungwise.models.fitting import Weights
from rungwise.models.trained.capabilities import SentenceVectors, WordVectors
from rungwise.models.word_vectors.paragraph_vectors import ParagraphVectorsConfig
from rungwise.models.word_vectors.word2vec import Word2vecConfig, alias_table
from rungwise.tokenizer.token_text import TokenisedText
from tests.conftest import SPECIAL_IDS

doc2vec_inner: Any = importlib.import_module("gensim.models.doc2vec_inner")
kernel: Any = kernels
P = 16  # rows in memory are multiples of this
CONFIGS = {
    "dbow": {},
    "dbow with words": {"words": True},
    "mean": {"architecture": "dm", "joining": "mean"},
    "sum": {"architecture": "dm"},
    "concatenation": {"architecture": "dm", "joining": "concatenation"},
    "hierarchical": {"output": "hierarchical"},
}


def config_of(name: str, **changes: Any) -> ParagraphVectorsConfig:
    return validate(ParagraphVectorsConfig, {"size": 12, "window": 2, **CONFIGS[name], **changes})


def rows(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.normal(0, 0.5, shape).astype(np.float32)


def text_of(lengths: list[list[int]], vocab_size: int = 40, first_document: int = 0) -> Any:
    """Documents with sentences of these lengths; each document has words of its own."""
    rng = np.random.default_rng(len(lengths))
    sizes = [size for document in lengths for size in document]
    ids = np.concatenate(
        [
            (rng.integers(0, 10, sum(document)) + 10 * number) % vocab_size
            for number, document in enumerate(lengths)
        ]
    )
    return TokenisedText(
        ids.astype(np.uint16),
        np.cumsum([0, *sizes]),
        np.cumsum([0, *map(len, lengths)]),
        np.arange(len(lengths), dtype=np.uint64),
        first_document=first_document,
    )


TEXT = text_of([[30, 20], [25], [10, 10, 40], [35]] * 2)
COUNTS = np.bincount(TEXT.ids, minlength=41)


def train(config: ParagraphVectorsConfig, epochs: int = 20, rate: float = 0.1) -> Weights:
    weights, plan = config.start(COUNTS, 8, seed=1), config.plan(COUNTS)
    for epoch in range(epochs):
        config.read(weights, plan, config.units(TEXT), (rate, rate), epoch)
    return weights


def step(arrays: Sequence[Any], words: list[int], joining: int, rate: float, **how: Any) -> float:
    """One step on two targets of a document, inputs and outputs; the loss if the rate is 0."""
    size = arrays[2].shape[1]
    room = (np.empty(size, np.float32), np.empty(size, np.float32), np.empty(2, np.float32))
    targets, labels = np.array([2, 5]), np.array([1, 0], np.float32)
    around, is_training = np.array(words, np.int64), how.get("is_training", True)
    return kernel.take_document_step(
        *arrays, around, targets, labels, joining, is_training, rate, *room
    )


def slow_loss(arrays: Sequence[Tensor], words: list[int], joining: int) -> Tensor:
    document, inputs, outputs = arrays
    parts = torch.cat((document[None], inputs[words]))
    x = {
        kernel.MEAN: parts.mean(0),
        kernel.SUM: parts.sum(0),
        kernel.CONCATENATION: parts.flatten(),
    }[joining]
    right, wrong = x @ outputs[2], x @ outputs[5]
    return -functional.logsigmoid(right) - functional.logsigmoid(-wrong)


@pytest.mark.parametrize("joining", [kernel.MEAN, kernel.SUM, kernel.CONCATENATION])
def test_a_step_is_the_gradient_of_the_papers_loss(joining: int) -> None:
    rng, words = np.random.default_rng(4), [1, 4, 4]
    width = 4 * P if joining == kernel.CONCATENATION else P
    arrays = [rows(rng, P), rows(rng, 6, P), rows(rng, 6, width)]
    before: list[Any] = [torch.from_numpy(array).double().requires_grad_() for array in arrays]
    expected = slow_loss(before, words, joining)
    expected.backward()
    assert step(arrays, words, joining, 0.0) == pytest.approx(expected.item(), rel=1e-5)
    frozen = [array.copy() for array in arrays]
    step(frozen, words, joining, 1.0, is_training=False)
    step(arrays, words, joining, 1.0)
    for start, after in zip(before, arrays, strict=True):
        np.testing.assert_allclose(start.detach().numpy() - after, start.grad, atol=2e-5)
    assert np.array_equal(frozen[0], arrays[0])
    assert all(np.array_equal(frozen[n], before[n].detach().float()) for n in (1, 2))


def gensim_model(**changes: Any) -> Any:
    """gensim's model of one document with the tree as output, which draws nothing."""
    words = [str(word) for word in TEXT.ids[:50]]
    how = {"hs": 1, "negative": 0, "sample": 0, "min_count": 1, "shrink_windows": False, **changes}
    model: Any = Doc2Vec(vector_size=P, window=2, seed=3, workers=1, **how)
    model.build_vocab([TaggedDocument(words, [0])])
    rng = np.random.default_rng(0)
    for array in (model.wv.vectors, model.dv.vectors, model.syn1):
        array[:] = rng.normal(0, 0.3, array.shape)
    return model


def walk(model: Any, word: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The path of a word in gensim's tree, and the labels of its decisions."""
    index = model.wv.key_to_index[word]
    nodes = np.array(model.wv.get_vecattr(index, "point"), np.int64)
    return nodes, 1 - np.array(model.wv.get_vecattr(index, "code"), np.float32)


WORDS = [str(word) for word in TEXT.ids[:4]]
# gensim's sigmoid is a table of 1,000 steps from -6 to 6, and its step of 1 / 83 is rounded, so
# that it is off by a place and by up to 0.024 near 0.
RATE, TABLE_ERROR = 0.05, 0.036


def step_on_path(
    model: Any, word: str, document: Any, inputs: Any, near: list[int], joining: int
) -> tuple[NDArray[np.float32], float]:
    """The kernel's step for one word, in place but for the output, which is returned."""
    outputs = model.syn1.copy()
    nodes, labels = walk(model, word)
    room = [np.empty(size, np.float32) for size in (*outputs.shape[1:] * 2, len(nodes))]
    around = np.array(near, np.int64)
    kernel.take_document_step(
        *(document, inputs, outputs, around, nodes, labels, joining, True, RATE, *room)
    )
    x = room[0]
    return outputs, RATE * TABLE_ERROR / 4 * float(np.abs(x).max())


def test_a_word_moves_its_document_under_dbow_as_in_gensim() -> None:
    model = gensim_model(dm=0)
    for word in WORDS:
        document, before = model.dv.vectors[0].copy(), model.dv.vectors[0].copy()
        outputs, atol = step_on_path(model, word, document, model.wv.vectors, [], kernel.SUM)
        doc2vec_inner.train_document_dbow(model, [word], [0], RATE)
        np.testing.assert_allclose(model.syn1, outputs, atol=atol)
        atol = RATE * TABLE_ERROR / 4 * len(walk(model, word)[0]) * np.abs(outputs).max()
        np.testing.assert_allclose(model.dv.vectors[0], document, atol=atol)
        assert np.abs(document - before).max() > 5 * atol


@pytest.mark.parametrize("joining", [kernel.MEAN, kernel.SUM, kernel.CONCATENATION])
def test_what_dm_reads_and_its_output_are_those_of_gensim(joining: int) -> None:
    """Only the output learns: gensim divides the gradient of a sum by the rows."""
    is_long = joining == kernel.CONCATENATION
    model = gensim_model(dm=1, dm_concat=int(is_long))
    model.cbow_mean = int(joining == kernel.MEAN)  # it takes no dm_mean of 0
    index, before = model.wv.key_to_index, model.syn1.copy()
    expected, tolerance = before.copy(), 0.0
    inputs = np.concatenate([model.wv.vectors, model.wv.vectors[[index.get("\0", 0)]]])
    for place, word in enumerate(WORDS):
        near = [
            index[WORDS[other]] if 0 <= other < len(WORDS) else len(inputs) - 1
            for other in range(place - 2, place + 3)
            if other != place and (is_long or 0 <= other < len(WORDS))
        ]
        model.syn1[:] = expected
        document = model.dv.vectors[0].copy()
        expected, atol = step_on_path(model, word, document, inputs.copy(), near, joining)
        tolerance += atol
    model.syn1[:] = before
    train_document = (
        doc2vec_inner.train_document_dm_concat if is_long else doc2vec_inner.train_document_dm
    )
    train_document(model, WORDS, [0], RATE, learn_doctags=False, learn_words=False)
    np.testing.assert_allclose(model.syn1, expected, atol=tolerance)
    assert np.abs(expected - before).max() > 5 * tolerance


@pytest.mark.parametrize("name", ["dbow", "mean", "sum", "concatenation"])
def test_the_first_loss_is_k_plus_one_times_ln_2(name: str) -> None:
    config = config_of(name, negatives=5, subsample=0.0)
    plan, weights = config.plan(COUNTS), config.start(COUNTS, 8, seed=0)
    ones = np.arange(41) == 40  # noise is always a word that the text lacks
    noise = dict(zip(("share", "other"), alias_table(ones.astype(np.float64)), strict=True))
    total, count = config.read(weights, plan._replace(**noise), config.units(TEXT), (0.0, 0.0), 0)
    assert count == sum(math.ceil(size / 2) for size in (50, 25, 60, 35) * 2)
    assert total / count == pytest.approx(6 * math.log(2), rel=1e-6)


@pytest.mark.parametrize("name", ["dbow", "dbow with words", "mean", "concatenation"])
def test_what_is_read_together_by_hand(name: str) -> None:
    """With one-hot rows the output counts what was read: words, places, documents."""
    config = config_of(name, size=7, window=1, dynamic_window=False, subsample=0.0)
    counts, joins = np.array([1, 1, 1, 1]), config.architecture == "dm"
    rate = 1e-4
    parts = 3 if name == "concatenation" else 1
    inputs, vectors = np.eye(5, P, dtype=np.float32), np.eye(2, P, 5, dtype=np.float32)
    outputs = np.zeros((4, parts * P), np.float32)
    kernel.read_documents(
        *(np.array([0, 1, 2, 3], np.int32), np.array([0, 3, 4]), np.array([1, 0]), 0, 2),
        *(config.plan(counts), vectors, inputs, outputs),
        *(0 if name == "dbow" else 1, False, 0, joins),
        *({"mean": kernel.MEAN, "concatenation": kernel.CONCATENATION}.get(name, kernel.SUM), True),
        *(rate, rate, 1),
    )
    found = outputs.reshape(4, parts, P).sum(axis=1)[:, :7] / (rate / 2)
    document = np.zeros((4, 7))
    document[:3, 6] = document[3, 5] = 1
    words = np.zeros((4, 7))
    if name != "dbow":
        words[[0, 1, 1, 2], [1, 0, 2, 1]] = 1
    if name == "concatenation":
        words[[0, 2], 4], words[3, 4] = 1, 2
    expected = document + words
    if name == "mean":
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    if name == "concatenation":  # the document, then the word before, then the word after
        np.testing.assert_allclose(outputs[1, P : P + 4] / (rate / 2), [1, 0, 0, 0], atol=1e-3)


def test_text_carries_the_numbers_of_its_documents() -> None:
    text = text_of([[3, 4], [5], [1, 1]], first_document=7)
    assert Word2vecConfig().units(text).documents.tolist() == [7, 7, 8, 9, 9]
    whole = config_of("dbow").units(text)
    assert (whole.documents.tolist(), whole.starts.tolist()) == ([7, 8, 9], [0, 7, 12, 14])
    assert (whole.first, whole.last) == (0, 3)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_document_learns_alone_and_the_same_again(name: str) -> None:
    config, plan = config_of(name), config_of(name).plan(COUNTS)
    weights = [config.start(COUNTS, 8, seed=1) for _ in range(2)]
    for each in weights:
        config.read(each, plan, config.units(TEXT)._replace(first=2, last=4), (0.1, 0.05), 5)
    for key, array in weights[0].items():
        assert np.array_equal(array, weights[1][key]), key
    before = config.start(COUNTS, 8, seed=1)["documents"]
    has_moved = (weights[0]["documents"] != before).any(axis=1)
    assert has_moved.tolist() == [False, False, True, True, *[False] * 4]


def test_the_mean_of_a_document_is_over_the_replicas_that_read_it() -> None:
    config = config_of("mean")
    before, plan = config.start(COUNTS, 8, seed=1), config_of("mean").plan(COUNTS)
    replicas = [{name: array.copy() for name, array in before.items()} for _ in range(2)]
    for number, weights in enumerate(replicas):
        part = config.units(TEXT)._replace(first=3 * number, last=3 * number + 3)
        config.read(weights, plan, part, (0.1, 0.1), number)
    after = config.average(before, replicas)
    for number in range(8):
        source = replicas[number // 3] if number < 6 else before
        assert np.array_equal(after["documents"][number], source["documents"][number])
    halfway = (replicas[0]["inputs"] + replicas[1]["inputs"]) / 2
    np.testing.assert_allclose(after["inputs"], halfway, rtol=1e-6)
    assert config.average(before, replicas[:1]) is replicas[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_texts_vector_follows_from_the_text_and_is_near_the_trained_one(name: str) -> None:
    config = config_of(name, size=20, inference_epochs=40)
    weights = train(config, epochs=40)
    model = config.model(weights, COUNTS)
    assert isinstance(model, SentenceVectors)
    assert isinstance(model, WordVectors) == (name not in ("dbow", "hierarchical"))
    saved = safetensors.numpy.save({**model.to_tensors(), "of": config.document_vectors(weights)})
    arrays = safetensors.numpy.load(saved)
    trained = arrays.pop("of")
    np.testing.assert_array_equal(trained, weights["documents"][:, :20])
    starts = config.units(TEXT).starts
    texts = [TEXT.ids[first:last].tolist() for first, last in itertools.pairwise(starts)]
    vectors = model.sentence_vectors([*texts, [40], []])
    again = config.from_tensors(arrays, SPECIAL_IDS).sentence_vectors([texts[3], *texts[:2]])
    assert np.array_equal(again, vectors[[3, 0, 1]])
    assert not vectors[8:].any()
    assert all(np.array_equal(arrays[key], array) for key, array in model.to_tensors().items())
    assert trained.shape == (8, 20)
    cosines = vectors[:8] @ trained.T
    cosines /= np.linalg.norm(vectors[:8], axis=1)[:, None] * np.linalg.norm(trained, axis=1)
    assert np.diag(cosines).min() > 0.8
    if config.architecture == "dbow":  # documents n and n + 4 have the same words
        assert all({row, (row + 4) % 8} == {*cosines[row].argsort()[-2:]} for row in range(8))
    assert (cosines.argmax(axis=1) % 4 == np.arange(8) % 4).all()
