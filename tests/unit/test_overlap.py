"""Test examples that a model has met before: found in texts whatever their marks, and left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.in_memory import write_corpus
from rungwise.corpus.cleaning import decontamination
from rungwise.corpus.cleaning.decontamination import find_texts
from rungwise.corpus.config import Rules
from rungwise.corpus.document import RawDocument
from rungwise.evaluation.comparison import overlap
from rungwise.evaluation.comparison.overlap import find_met
from rungwise.finetune import FinetuneConfig
from rungwise.tasks.kinds.examples import Tagged, TaskInfo, write_examples
from tests.summaries import standing, task_of

WORDS = st.lists(st.sampled_from("abc"), max_size=9)


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(st.lists(WORDS, max_size=3), max_size=3))
def test_a_text_is_found_if_all_its_runs_are_in_documents(
    texts: list[list[str]], documents: list[list[list[str]]]
) -> None:
    """By sets of strings; a run may cross sentences and not documents."""

    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[n : n + 3]) for n in range(len(words) - 2)}

    present = {run for d in documents for run in runs([word for s in d for word in s])}
    expected = [bool(runs(text)) and runs(text) <= present for text in texts]
    lines = [[", ".join(words).upper() for words in document] for document in documents]
    found = find_texts([" ".join(text) for text in texts], lines, 3)
    assert found.tolist() == expected


def test_large_texts_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decontamination, "_CHARACTERS_AT_ONCE", 10)
    documents = [[f"this is text number {n}", "and its second sentence"] for n in range(50)]
    assert find_texts(
        ["Is text number 49 and", "is text number 50 and"], documents, 5
    ).tolist() == [True, False]


SENTENCE = "EU rejects German call to boycott British lamb ."
CONLL = tuple(SENTENCE.split())


def test_examples_of_either_source_are_counted_and_the_rest_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus_folder = Folder.at(tmp_path / "corpus")
    text = "EU rejects German call to boycott British lamb."  # in one document that trains
    documents = [RawDocument(str(n), "x", (f"{text} {n}" * (n < 9), "More.")) for n in range(12)]
    rules = Rules(minimum_characters=1, held_out_fraction=0.01)
    summary = write_corpus([documents], rules, "x", corpus_folder)
    corpus = standing("corpus", corpus_folder, summary)
    task_folder = Folder.at(tmp_path / "task")
    examples = [
        Tagged("a", CONLL, ("O",) * 9),
        Tagged("b", ("one", "word"), ("O",) * 2),
        Tagged("c", ("word",) * 9, ("O",) * 9),
    ]
    write_examples([examples[1]], task_folder, "train")
    task = task_of(task_folder, TaskInfo("tagging", ("O", "X"), False, "accuracy"))
    monkeypatch.setattr(overlap, "chain", lambda pretrain: [corpus, pretrain])

    def variant(initialisation: Any) -> Any:
        settings = FinetuneConfig(initialisation=initialisation)
        return type("V", (), {"finetune": settings, "pretrains": (task,)})

    both = {"trained": variant("pretrained"), "random": variant("random")}
    found = find_met(both, task, examples)
    counts, fresh = found["trained"]
    assert (counts.training, counts.pretraining) == (1, 1)
    assert fresh.tolist() == [False, False, True]
    counts, fresh = found["random"]
    assert (counts.training, counts.pretraining) == (1, 0)
    assert fresh.tolist() == [True, False, True]

    def lost(_: Any) -> Any:
        raise DataError("not below the same root")

    monkeypatch.setattr(overlap, "chain", lost)
    counts, fresh = find_met(both, task, examples)["trained"]
    assert counts.pretraining is None
    assert np.array_equal(fresh, found["random"][1])
