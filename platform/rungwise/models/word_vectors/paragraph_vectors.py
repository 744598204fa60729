"""Paragraph vectors as a family: a vector for each document, learnt by predicting its words.

Le & Mikolov 2014, "Distributed Representations of Sentences and Documents" (arXiv:1405.4053). A
text that was not trained on gets a vector by a small fit, in which its row alone learns; its random
numbers follow from the text, so equal texts get equal vectors.

V vocabulary, N training documents, D size of a vector, P the same in memory, R rows of the output,
X size of what is read: D, or (2·window + 1)·D if concatenated
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core import randomness
from rungwise.core.arrays import Ints, Singles
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models.fitting import Losses, Rates, Stretch, Weights
from rungwise.models.word_vectors.vector_family import mean, pad_rows, random_rows, vector_objective
from rungwise.models.word_vectors.word2vec import Plan, WindowFamily

_TENSORS = ("inputs", "outputs", "counts")


class ParagraphVectorsConfig(WindowFamily):
    """PV-DBOW or PV-DM, by default the first, which learns no vectors of words. PV-DM reads the
    sum, which learns at the rate of PV-DBOW. As in word2vec, the mean follows its true gradient and
    needs a learning rate about as many times higher as rows are averaged."""

    objectives: ClassVar = (vector_objective("document_words", "Held-out document", "word"),)
    year: ClassVar[int] = 2014
    paper: ClassVar[str] = "Le & Mikolov"
    idea: ClassVar[str] = "a list of numbers for every paragraph, learnt from its words"
    page: ClassVar[str] = "paragraph-vector model"

    kind: Literal["paragraph_vectors"] = "paragraph_vectors"
    # predict a word from its document, or (dm) from its document and its window
    architecture: Literal["dbow", "dm"] = "dbow"
    # how dm joins the two; concatenation always reads the whole window
    joining: Literal["sum", "mean", "concatenation"] = "sum"
    words: bool = False  # dbow also learns vectors of words, by skip-gram in the same pass
    inference_epochs: int = Field(default=10, ge=1)  # passes over a new text
    inference_rate: float = Field(default=0.025, gt=0)  # learning rate of the first of them

    @model_validator(mode="after")
    def _words_of_dbow(self) -> Self:
        if self.words and self.architecture == "dm":
            raise ValueError("words is for architecture dbow; dm always learns vectors of words")
        return self

    @property
    def learns_words(self) -> bool:
        return self.architecture == "dm" or self.words

    def describe(self) -> str:
        name = f"PV-DM ({self.joining})" if self.architecture == "dm" else "PV-DBOW"
        words = f", window {self.window}" if self.learns_words else ""
        return f"{name} with {self.output_name}, vectors of {self.size}{words}"

    def start(self, counts_V: Ints, documents: int, seed: int) -> Weights:
        """Return the initial weights; the last input is for places beyond a document's ends."""
        rng = np.random.default_rng(seed)
        counts = counts_V if self.learns_words else counts_V[:0]
        inputs = random_rows(rng, np.append(counts, 0), self.size)
        return {
            "documents": random_rows(rng, np.ones(documents, np.int64), self.size),
            "inputs": inputs,
            "outputs": self.outputs(counts_V, self._parts * inputs.shape[1]),
        }

    def units(self, text: TokenisedText) -> Stretch:
        """Return a text as documents."""
        starts = text.starts[text.first_sentence]
        numbers = np.arange(len(starts) - 1) + text.first_document
        return Stretch(text.ids.astype(np.int32), starts, numbers, 0, len(numbers))

    def read(self, weights: Weights, plan: Plan, text: Stretch, rates: Rates, seed: int) -> Losses:
        """Train; on held-out text fit a document's first half, and measure the second."""
        plan = Plan(*plan)  # a task hands over copies in a list
        if not any(rates):
            return self._held_out(weights, plan, text, seed)
        first, last = rates  # a document may reach beyond the share of its task
        return self.read_once(text, weights, plan, (first, max(0.0, last)), seed)

    def read_once(
        self,
        text: Stretch,
        weights: Weights,
        plan: Plan,
        rates: Rates,
        seed: int,
        is_training: bool = True,
    ) -> Losses:
        """Read documents once; unless it `is_training`, only their vectors learn."""
        from rungwise.models import kernels as kernel

        joins = self.architecture == "dm"
        reads_words = joins or (self.words and is_training)
        joining = {"sum": kernel.SUM, "mean": kernel.MEAN, "concatenation": kernel.CONCATENATION}
        return kernel.read_documents(
            *(text.ids, text.starts, text.documents, text.first, text.last),
            plan,
            *(weights["documents"], weights["inputs"], weights["outputs"]),
            *(self.window if reads_words else 0, self.dynamic_window and self._parts == 1),
            *(self.negatives, joins, joining[self.joining] if joins else kernel.SUM, is_training),
            *(*rates, seed),
        )

    def fit(self, weights: Weights, plan: Plan, texts: Sequence[NDArray[np.integer]]) -> Singles:
        """Return the vectors (len(texts), P) of new texts; zeros for one without a known token."""
        rows = np.zeros((len(texts), weights["inputs"].shape[1]), np.float32)
        for ids, row in zip(texts, rows, strict=True):
            words = ids[plan.keep[ids] > 0].astype(np.int32)
            if not len(words):
                continue
            key = int.from_bytes(hashlib.blake2b(words.tobytes(), digest_size=8).digest(), "little")
            places = np.arange(self.size)
            row[: self.size] = (randomness.uniform(key, 0, places) - 0.5) / self.size
            text = Stretch(words, np.array([0, len(words)]), np.zeros(1, np.int64), 0, 1)
            for epoch in range(self.inference_epochs):
                rate = self.inference_rate * (1 - epoch / self.inference_epochs)
                seed = int(randomness.bits(key, 1, epoch)) >> 1
                frozen = {**weights, "documents": row[None]}
                self.read_once(text, frozen, plan, (rate, rate), seed, is_training=False)
        return rows

    def _held_out(self, weights: Weights, plan: Plan, text: Stretch, seed: int) -> Losses:
        begins, ends = text.starts[:-1], text.starts[1:]
        middles = (begins + ends) // 2
        halves = [text.ids[begin:middle] for begin, middle in zip(begins, middles, strict=True)]
        weights = {**weights, "documents": self.fit(weights, plan, halves)}
        total, count = 0.0, 0
        for unit, (middle, end) in enumerate(zip(middles, ends, strict=True)):
            number = np.array([unit])
            second = Stretch(text.ids, np.array([middle, end]), number, 0, 1)
            loss, losses = self.read_once(second, weights, plan, (0.0, 0.0), seed + unit, False)
            total, count = total + loss, count + losses
        return total, count

    def average(self, before: Weights, replicas: Sequence[Weights]) -> Weights:
        """Return the mean of replicas; that of a document is over those that have read it."""
        if len(replicas) == 1:
            return replicas[0]
        rows = np.stack([weights["documents"] for weights in replicas])
        has_read = (rows != before["documents"]).any(axis=-1, keepdims=True)
        total = np.where(has_read, rows, 0).sum(axis=0)
        count = has_read.sum(axis=0)
        documents = np.where(count, total / np.maximum(count, 1), before["documents"])
        return {**mean(replicas), "documents": documents.astype(np.float32)}

    def model(self, weights: Weights, counts_V: Ints) -> "ParagraphModel":
        kind = ParagraphWordModel if self.learns_words else ParagraphModel
        return kind(
            self, self._narrowed(weights["inputs"]), self._narrowed(weights["outputs"]), counts_V
        )

    def document_vectors(self, weights: Weights) -> Singles:
        return self._narrowed(weights["documents"])

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> "ParagraphModel":
        kind = ParagraphWordModel if self.learns_words else ParagraphModel
        return kind(self, *(tensors[name] for name in _TENSORS))

    @property
    def _parts(self) -> int:
        """How many vectors x holds."""
        is_long = self.architecture == "dm" and self.joining == "concatenation"
        return 2 * self.window + 1 if is_long else 1

    def _narrowed(self, rows: Singles) -> Singles:
        """Remove what rows of one or more vectors are padded with."""
        parts = rows.shape[1] // len(pad_rows(np.zeros((1, self.size)))[0])
        narrow = rows.reshape(len(rows), parts, -1)[:, :, : self.size]
        return np.ascontiguousarray(narrow.reshape(len(rows), -1))  # safetensors writes memory


@dataclass(frozen=True, eq=False)
class ParagraphModel:
    """A finished run without the vectors of its documents: what gives a new text its vector."""

    config: ParagraphVectorsConfig
    inputs: Singles  # (V + 1, D), the last for places beyond an end; or (1, D)
    outputs: Singles  # (R, X)
    counts: Ints  # (V,) of tokens in the training split

    learns_documents: ClassVar[bool] = True  # it has learnt a vector for each that it has read

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in _TENSORS}

    def sentence_vectors(self, texts: Sequence[Sequence[int]]) -> Singles:
        """Return the vectors (len(texts), D) of texts; zeros for one without a known token."""
        outputs = self.outputs.reshape(-1, self.config.size)
        weights = {
            "inputs": pad_rows(self.inputs),
            "outputs": pad_rows(outputs).reshape(len(self.outputs), -1),
        }
        plan = self.config.plan(self.counts)
        rows = self.config.fit(weights, plan, [np.array(ids, np.int32) for ids in texts])
        return rows[:, : self.config.size]


class ParagraphWordModel(ParagraphModel):
    """A model that also has vectors of words."""

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    def vectors(self, ids: Sequence[int]) -> Singles:
        return self.inputs[list(ids)]
