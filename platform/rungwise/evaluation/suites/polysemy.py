"""The same word in different senses: textbook sentences, read by the rung.

    play (sport)  play (sport)  play (theatre)  play (theatre)   of polysemy.yaml
        each pair ──> cosine of the two states, in every layer
        each ──> does the nearest of the others have the same sense?

After Peters et al. 2018 (arXiv:1802.05365), table 4. Ten sentences illustrate; the suite `senses`
measures. Ties, as among static vectors, share the credit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import Rung, SuiteResult
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.section import (
    MeasuredRung,
    ScoreTable,
    SuiteBlock,
    TableEntry,
    TableRow,
)
from rungwise.evaluation.suites.states import Sentence, WordStatesSuite, word_reader

PAIRS = "pairs.json"
_SAME = 1e-6  # cosines closer than this count as equal, as with identical vectors
_WORDS = (
    "For each sentence of a textbook, the number of the sentence whose marked word is nearest in "
    "the last layer: ✓ same sense, ✗ another sense; “all equal” where a "
    "rung has one vector for all of them. Below it, the cosine."
)


class PolysemySuite(WordStatesSuite):
    """A few ambiguous words: do their vectors differ between senses?"""

    kind: Literal["polysemy"] = "polysemy"

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        reader, texts = word_reader(rung), read_textbook()
        credits: list[tuple[str, str, NDArray[np.float64]]] = []  # name, group, (K,)
        pairs: dict[str, Any] = {}
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
        names, groups, credit = zip(*credits, strict=True)
        items = [
            Items.of_credit(name, f"layer {layer}", list(names), list(groups), layer_credit)
            for layer, layer_credit in enumerate(np.stack(credit, axis=1))
        ]
        return SuiteResult(items, {PAIRS: pairs})

    def show(self, name: str, rungs: Sequence[MeasuredRung]) -> SuiteBlock:
        files = {rung.name: rung.file(name, PAIRS) for rung in rungs}
        words = next((file for file in files.values() if file), {})
        rows = [
            TableRow(
                _mark_word(occurrence),
                {rung: _nearest_entry(place, **file[word]) for rung, file in files.items() if file},
                f"{word} {place + 1}, {occurrence['sense']}",
            )
            for word, pairs in words.items()
            for place, occurrence in enumerate(pairs["occurrences"])
        ]
        table = ScoreTable("sentence", rows)
        return replace(super().show(name, rungs), words=_WORDS, tables=[table] if rows else [])


def _mark_word(occurrence: Mapping[str, Any]) -> str:
    """The sentence with its word between asterisks."""
    text, first, end = (occurrence[key] for key in ("text", "first", "end"))
    return f"{text[:first]}*{text[first:end]}*{text[end:]}"


def _nearest_entry(
    place: int, occurrences: Sequence[Mapping[str, Any]], cosines: Sequence[Sequence[Any]]
) -> TableEntry:
    """The occurrence nearest to that at `place` in the last layer, and whether its sense is the
    same, which is not said of an only one of its sense."""
    last, senses = cosines[-1][place], [each["sense"] for each in occurrences]
    others = [other for other in range(len(senses)) if other != place]
    most = max(last[other] for other in others)
    nearest = [other for other in others if most - last[other] < _SAME]
    if len(nearest) > 1:
        return TableEntry(text="all equal", under=f"{most:.2f}")
    mark = ""
    if senses.count(senses[place]) > 1:
        mark = "✓ " if senses[nearest[0]] == senses[place] else "✗ "
    return TableEntry(text=f"{mark}{nearest[0] + 1}", under=f"{most:.2f}")


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


def _sentence_data(sentence: Sentence) -> dict[str, Any]:
    ((first, end),) = sentence.words
    return {"text": sentence.text, "first": first, "end": end}
