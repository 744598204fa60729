"""The same word in different senses: textbook sentences, read by the rung.

    play (sport)  play (sport)  play (theatre)  play (theatre)   of polysemy.yaml
        each pair ──> cosine of the two states, in every layer
        each ──> does the nearest of the others have the same sense?
        each ──> the nearest occurrences of the word in the held-out text
    play ──> the nearest words in the table of static vectors (one vector per word)

After Peters et al. 2018 (arXiv:1802.05365), table 4. Ten sentences illustrate; the suite `senses`
measures. Ties, as among static vectors, share the credit.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.corpus.summary import read_split
from rungwise.evaluation.page.neighbours import Neighbourhood
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import Rung, SuiteResult
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import Sentence, WordReader, WordStatesSuite, word_reader
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import WordVectors

PAIRS = "pairs.json"
NEIGHBOURS = "neighbours.json"
_NEAREST = 3  # occurrences to list


class PolysemySuite(WordStatesSuite):
    """A few ambiguous words: do their vectors differ between senses, and what is near them?"""

    kind: Literal["polysemy"] = "polysemy"
    words: int = Field(default=10, ge=1)  # nearest words to list
    # occurrences of a word in the held-out text to compare, evenly spread
    occurrences: int = Field(default=100, ge=1)

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        reader, texts = word_reader(rung), read_textbook()
        held_out = _held_out(rung, list(texts), self.occurrences)
        credits: list[tuple[str, str, NDArray[np.float64]]] = []  # name, group, (K,)
        pairs: dict[str, Any] = {}
        nearest: dict[str, Any] = {}
        for word, occurrences in texts.items():
            senses = [occurrence.sense for occurrence in occurrences]
            states = reader.layers([occurrence.sentence for occurrence in occurrences]).layers
            cosines = [classifiers.cosines(layer, layer) for layer in states]
            pairs[word] = {
                "occurrences": [
                    _sentence_data(each.sentence) | {"sense": each.sense} for each in occurrences
                ],
                "cosines": [layer.round(4).tolist() for layer in cosines],
            }
            for place, sense in enumerate(senses):
                if senses.count(sense) > 1:
                    credit = [nearest_credit(layer, senses, place) for layer in cosines]
                    credits.append((f"{word} {place}", word, np.array(credit)))
            nearest[word] = _nearest_occurrences(reader, states, held_out[word])
        names, groups, credit = zip(*credits, strict=True)
        items = [
            Items.of_credit(name, f"layer {layer}", list(names), list(groups), layer_credit)
            for layer, layer_credit in enumerate(np.stack(credit, axis=1))
        ]
        neighbours = {
            "words": _nearest_words(rung, list(texts), self.words),
            "occurrences": nearest,
        }
        return SuiteResult(items, {PAIRS: pairs, NEIGHBOURS: neighbours})


@dataclass(frozen=True)
class Occurrence:
    sentence: Sentence  # with one word
    sense: str


def read_textbook() -> dict[str, list[Occurrence]]:
    file = resources.files("rungwise.evaluation.suites") / "polysemy.yaml"
    data = yaml.safe_load(file.read_text("utf-8"))
    texts: dict[str, list[Occurrence]] = {}
    for word, rows in data.items():
        for row in rows:
            before, marked, after = row["text"].split("*")
            span = (len(before), len(before) + len(marked))
            sentence = Sentence(before + marked + after, (span,))
            texts.setdefault(word, []).append(Occurrence(sentence, row["sense"]))
    return texts


def nearest_credit(cosines: NDArray[np.float64], senses: Sequence[str], place: int) -> float:
    """1 if the occurrence nearest to `place` has its sense; for ties, the share that has."""
    others = [other for other in range(len(senses)) if other != place]
    most = max(cosines[place][other] for other in others)
    nearest = [other for other in others if cosines[place][other] == most]
    return sum(senses[other] == senses[place] for other in nearest) / len(nearest)


def _nearest_occurrences(
    reader: WordReader, states_KNE: NDArray[np.float32], pool: Sequence[Sentence]
) -> list[list[list[dict[str, Any]]]]:
    if not pool:
        return [[[] for _ in layer] for layer in states_KNE]
    layers = []
    for layer, others in zip(states_KNE, reader.layers(pool).layers, strict=True):
        cosines = classifiers.cosines(layer, others)
        best = np.argsort(-cosines, axis=1, kind="stable")[:, :_NEAREST]
        layers.append(
            [
                [_sentence_data(pool[n]) | {"cosine": round(float(row[n]), 4)} for n in order]
                for row, order in zip(cosines, best.tolist(), strict=True)
            ]
        )
    return layers


def _nearest_words(
    rung: Rung, words: Sequence[str], count: int
) -> dict[str, list[tuple[str, float]]] | None:
    """The words with the nearest static vectors, of words that have one; None without a table."""
    if not isinstance(rung.model, WordVectors):
        return None
    near, nearest = Neighbourhood(rung.model, rung.splitter), {}
    for word in words:
        with contextlib.suppress(DataError):
            best = near.nearest(word, count).nearest
            nearest[word] = [(each.word, round(each.cosine, 4)) for each in best]
    return nearest


def _held_out(rung: Rung, words: Sequence[str], most: int) -> dict[str, list[Sentence]]:
    """Held-out sentences with each word, up to `most`, the word's first place in each."""
    patterns = {word: re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE) for word in words}
    matches: dict[str, list[Sentence]] = {word: [] for word in words}
    for document in read_split(rung.corpus, "validation"):
        for text in document.sentences:
            for word, pattern in patterns.items():
                if match := pattern.search(text):
                    matches[word].append(Sentence(text, (match.span(),)))
    return {word: [each[n] for n in evenly(len(each), most)] for word, each in matches.items()}


def _sentence_data(sentence: Sentence) -> dict[str, Any]:
    ((first, end),) = sentence.words
    return {"text": sentence.text, "first": first, "end": end}
