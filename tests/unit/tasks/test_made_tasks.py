"""Tasks and altered sentences by rules: each example differs only as its rule says."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import CLS_ID
from rungwise.corpus.cleaning.text import segment
from rungwise.corpus.document import SCHEMA
from rungwise.corpus.summary import read_split
from rungwise.evaluation.suites.language_models import (
    MinimalPairsSuite,
    alter_sentences,
    held_out_sentences,
)
from rungwise.models import ngram_model
from rungwise.models.families import kneser_ney
from rungwise.tasks.config import CapitalsConfig, NextParagraphConfig, ParagraphTaskConfig
from rungwise.tasks.data import made
from rungwise.tasks.data.files import build_task
from rungwise.tasks.data.made import PLAIN_WORD, LikeWords, Paragraph, count_words, hide_name
from rungwise.tasks.kinds.examples import SPLITS, TaskInfo, read_examples
from tests.summaries import corpus_of, standing
from tests.toy_rungs import FIRST_WORD, toy_rung

SMALL: dict[str, Any] = {
    "train_examples": 60,
    "validation_examples": 20,
    "test_examples": 40,
    "minimum_words": 6,
}


def write_corpus(
    folder: Path,
    documents: dict[str, list[list[str]]],
    is_held_out: Callable[[int], bool] = lambda number: number % 3 == 0,
) -> Artifact:
    """A corpus of these paragraphs of sentences; the label of `a.b` is a."""
    folder.mkdir(parents=True)
    files = []
    for split, remainder in (("train", False), ("validation", True)):
        rows = []
        for number, (name, paragraphs) in enumerate(documents.items()):
            if is_held_out(number) == remainder:
                starts = np.cumsum([0, *map(len, paragraphs)])[:-1].tolist()
                sentences = [sentence for each in paragraphs for sentence in each]
                row: dict[str, Any] = {"id": name, "label": name.partition(".")[0], "digest": name}
                row |= {"sentences": sentences, "paragraph_starts": starts}
                rows.append(row)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / f"{split}-00000.parquet")
        files.append({"file": f"{split}-00000.parquet", "split": split, "documents": len(rows)})
    return corpus_of(folder, files)


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    documents = {
        name: [segment(" ".join(part.split())) for part in text.split("\n\n") if part.strip()]
        for name, text in topics.items()
    }
    return write_corpus(tmp_path_factory.mktemp("manual") / "corpus", documents)


def paragraphs_of(corpus: Artifact) -> dict[tuple[str, int], Paragraph]:
    return {(each.document, each.number): each for each in made.read_paragraphs(corpus)}


def place_of(where: str) -> tuple[str, int]:
    document, _, number = where.rpartition(", paragraph ")
    return document, int(number) - 1


def test_a_paragraph_follows_its_neighbour_or_stands_elsewhere(manual: Artifact) -> None:
    task = made.load(NextParagraphConfig(**SMALL), manual)
    paragraphs = paragraphs_of(manual)
    texts = Counter(each.text for each in paragraphs.values())
    for split, examples in task.splits.items():
        assert len(examples) == SMALL[f"{split}_examples"]
        assert Counter(e.target for e in examples) == {
            made.FOLLOWS: len(examples) / 2,
            made.ELSEWHERE: len(examples) / 2,
        }
        successors = []
        for example in examples:
            document, number = place_of(example.where)
            first, second = paragraphs[document, number], paragraphs[document, number + 1]
            assert example.text == first.text
            assert first.held_out == (split == "test")
            assert (example.second == second.text) == (example.target == made.FOLLOWS)
            assert texts[first.text] == texts[example.second] == 1
            successors.append(second.text)
        # Each second is the successor of one first: it cannot tell by itself what it is.
        assert sorted(successors) == sorted(e.second for e in examples)
    firsts = [{e.text for e in task.splits[split]} for split in SPLITS]
    assert not firsts[0] & firsts[1]
    assert not firsts[0] & firsts[2]


def test_capitals_and_ends_of_sentences_are_given_back_by_their_tags(manual: Artifact) -> None:
    task = made.load(CapitalsConfig(**{**SMALL, "maximum_words": 120}), manual)
    paragraphs = paragraphs_of(manual)
    for example in (e for split in SPLITS for e in task.splits[split]):
        paragraph = paragraphs[place_of(example.where)]
        assert sum(tag in (made.END, made.BOTH) for tag in example.tags) == len(paragraph.sentences)
        assert all(word == word.lower() for word in example.words)
        # A unit of punctuation alone may end a sentence, and then it is left out.
        pairs = [
            pair
            for pair in zip(example.words, example.tags, strict=False)
            if any(map(str.isalnum, pair[0]))
        ]
        written = [unit for unit in paragraph.text.split() if any(map(str.isalnum, unit))]
        for (word, tag), origin in zip(pairs, written, strict=True):
            assert origin.lower().startswith(word)
            initial = next(filter(str.isalpha, origin), "")
            assert initial.isupper() == (tag in (made.CAPITAL, made.BOTH)), (origin, tag)


def test_chinese_words_are_characters(tmp_path: Path) -> None:
    sentences = ["今天的天气很好。", "我们去公园里走一走。", "他说明天会下雨。"]
    shifts = "一二三四五六七八九十"
    documents = {
        f"d{d}": [
            [f"{shifts[p]}{shifts[d % 10]}{shifts[d // 10]}{s}" for s in sentences]
            for p in range(10)
        ]
        for d in range(40)
    }
    corpus = write_corpus(tmp_path / "corpus", documents)
    sizes: dict[str, Any] = {"train_examples": 8, "validation_examples": 4, "test_examples": 8}
    tags = made.load(CapitalsConfig(**sizes), corpus).splits["test"][0]
    assert {*tags.tags} == {made.PLAIN, made.END}
    assert set(map(len, tags.words)) == {1}
    rules = Counter(pair.paradigm for pair in alter_sentences(sentences_of(corpus), 20))
    assert rules == {"swapped_words": 20, "other_word": 20}


def test_too_little_text_is_said_with_what_there_is(manual: Artifact) -> None:
    task = made.load(NextParagraphConfig(**{**SMALL, "test_examples": 9000}), manual)
    count = len(task.splits["test"])
    assert task.notes == [
        f"the corpus gives {count} examples of next_paragraph for test, and data.test_examples "
        "is 9000"
    ]
    with pytest.raises(DataError, match=r"gives 0 examples of .* for train, expected 20 or more"):
        made.load(NextParagraphConfig(**{**SMALL, "minimum_words": 9000}), manual)


def sentences_of(corpus: Artifact) -> list[tuple[str, str]]:
    return held_out_sentences(read_split(corpus, "validation"))


def test_altered_sentences_differ_only_as_their_rule_says(manual: Artifact) -> None:
    sentences = sentences_of(manual)
    pairs = alter_sentences(sentences, None)
    counts = count_words(text for _, text in sentences)
    rules = Counter(pair.paradigm for pair in pairs)
    assert {*rules} == {"swapped_words", "other_word"}
    assert min(rules.values()) > 100
    like = LikeWords(counts, 5)
    for pair in pairs:
        good, bad = pair.good.split(), pair.bad.split()
        assert pair.good != pair.bad
        assert len(good) == len(bad)
        places = [place for place in range(len(good)) if good[place] != bad[place]]
        words = [(good[place], bad[place]) for place in places]
        if pair.paradigm == "swapped_words":
            assert Counter(good) == Counter(bad)
            assert places[1] == places[0] + 1
            assert len(places) == 2
            assert places[0] > 0
        else:
            ((old, new),) = words
            assert old in like
            assert new in like
            assert PLAIN_WORD.fullmatch(new)
            between = sum(
                min(counts[old], counts[new]) < n < max(counts[old], counts[new])
                for word, n in counts.items()
                if word in like
            )
            assert between <= 20
    few = alter_sentences(sentences, 20)
    assert Counter(pair.paradigm for pair in few) == dict.fromkeys(rules, 20)
    assert set(few) < set(pairs)


def test_a_unigram_model_has_half_of_swapped_words(manual: Artifact, tmp_path: Path) -> None:
    words = sorted({word for _, text in sentences_of(manual) for word in text.split()})
    texts = [np.arange(len(words), dtype=np.uint16) + FIRST_WORD]
    offsets = np.array([0, len(words)])
    table = ngram_model.count_ngrams(np.concatenate(texts), offsets, 1, CLS_ID)
    model = kneser_ney.estimate_model(
        table, FIRST_WORD + len(words), CLS_ID, kneser_ney.Smoothing((0.5, 1.0, 1.5))
    )
    rung = toy_rung(tmp_path, words, model, corpus=manual)
    result = MinimalPairsSuite(pairs_per_paradigm=150).measure(rung, "pairs")
    (items,) = (each for each in result if each.part == "")
    swapped = items.select_group("swapped_words")
    assert len(swapped.names) == 150
    assert set(swapped.numbers[:, 0]) == {0.5}


def corpus(folder: Path, paragraphs: int = 6) -> Artifact:
    """Three libraries of ten modules; one boilerplate paragraph stands in all of them."""
    documents = {
        f"{label}.{module}": [
            *(
                [
                    f"The {label} library and module {module} of kind {p} does what "
                    f"{label.title()} says it does with {fruit} and nothing else at all."
                ]
                for p in range(paragraphs)
            ),
            ["Licensed under the same licence as all of the other files are here."],
        ]
        for label, fruit in (("alpha", "apples"), ("beta", "pears"), ("gamma", "plums"))
        for module in range(16)
    }
    return write_corpus(folder, documents, lambda number: number % 16 >= 10)


def test_the_task_is_balanced_hides_the_name_and_shares_no_document_or_text(tmp_path: Path) -> None:
    config = ParagraphTaskConfig(
        num_labels=3, train_per_label=8, validation_per_label=5, test_per_label=10, minimum_words=5
    )
    output = Folder.at(tmp_path / "task")
    summary = build_task(config, {"corpus": corpus(tmp_path / "corpus")}, output, Context())
    task = standing("task", output, summary)
    splits = {split: read_examples(task, split) for split in SPLITS}
    assert {split: len(rows) for split, rows in splits.items()} == summary.examples.model_dump()
    labels = ("alpha", "beta", "gamma")
    assert summary.info == TaskInfo("classification", labels, False, "accuracy")
    seen: set[str] = set()
    for split, rows in splits.items():
        counts = Counter(row.target for row in rows)
        assert len(set(counts.values())) == 1, split
        for row in rows:
            assert row.target not in row.text.lower()
            assert "Licensed" not in row.text
        documents = {row.where for row in rows} | {row.text for row in rows}
        assert not documents & seen
        seen |= documents
    assert {int(row.where.split(".")[1]) >= 10 for row in splits["test"]} == {True}


def test_too_few_paragraphs_are_refused_with_what_was_found(tmp_path: Path) -> None:
    config = ParagraphTaskConfig(num_labels=3, test_per_label=500, minimum_words=5)
    with pytest.raises(
        DataError, match=r"data\.num_labels is 3, but only 0 labels.*lower num_labels"
    ):
        build_task(config, {"corpus": corpus(tmp_path / "c")}, Folder.at(tmp_path / "t"), Context())


def test_hiding_a_name_leaves_longer_words_alone() -> None:
    assert hide_name("Ray, ray.data and array or RAY_x", "ray") == (
        "library, library.data and array or library_x"
    )
