"""Minimal pairs: credit by hand, what counts cannot tell apart, the published files."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rungwise.core.errors import DataError
from rungwise.evaluation.suites.language_models import (
    TIES,
    TIES_TO_GOOD,
    MinimalPairsSuite,
    pair_credits,
    read_pairs,
    sample_pairs,
)
from tests.toy_rungs import counted, toy_rung

WORDS = ["the", "dog", "barks", "dogs", "bark"]
CORPUS = ["the dog barks", "the dogs bark", "the dog barks", "dogs bark", "the the dogs"]


def row(paradigm: str, number: int, good: str, bad: str, **changes: Any) -> dict[str, Any]:
    known = {"UID": paradigm, "linguistics_term": "agreement", "pairID": str(number)}
    return {**known, "sentence_good": good, "sentence_bad": bad, **changes}


PAIRS = [
    row("order", 0, "the dog barks", "the barks dog"),
    row("order", 1, "dogs bark", "dogs  bark"),
    row("number", 0, "the dog barks", "the dog bark"),
    row("number", 1, "the dogs bark", "the dogs barks", linguistics_term="s-selection"),
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return path


def test_credit_by_hand() -> None:
    parts = pair_credits(np.array([2.0, 0.0, -1.0, -1e-9, 1e-3]))
    assert parts[""].tolist() == [1, 0.5, 0, 0.5, 1]
    assert parts[TIES_TO_GOOD].tolist() == [1, 1, 0, 1, 1]
    assert parts[TIES].tolist() == [0, 1, 0, 1, 0]


def test_a_unigram_model_does_not_see_the_order_of_words_a_bigram_does(tmp_path: Path) -> None:
    path = written(tmp_path / "pairs.jsonl", PAIRS)
    suite = MinimalPairsSuite(path=(str(path),))
    credit = {}
    for order in (1, 2):
        rung = toy_rung(tmp_path / str(order), WORDS, counted(WORDS, CORPUS, order))
        items = {each.part: each for each in suite.measure(rung, "pairs")}
        assert items[""].names == ["number/0", "number/1", "order/0", "order/1"]
        assert items[""].groups == ["agreement", "argument_structure", "agreement", "agreement"]
        credit[order] = {part: each.numbers[:, 0].tolist() for part, each in items.items()}
    # `barks` came twice, `bark` twice: a tie too. The last pair is of the same words.
    assert credit[1] == {"": [0.5] * 4, TIES_TO_GOOD: [1] * 4, TIES: [1] * 4}
    assert credit[2] == {"": [1, 1, 1, 0.5], TIES_TO_GOOD: [1] * 4, TIES: [0, 0, 0, 1]}


def test_text_without_sentences_is_too_little(tmp_path: Path) -> None:
    rung = toy_rung(tmp_path, WORDS, counted(WORDS, CORPUS, 1))
    rung.__dict__["held_out"] = []
    with pytest.raises(DataError, match=r"measure\.pairs: expected held-out sentences of 5 to 25"):
        MinimalPairsSuite().measure(rung, "pairs")


def test_fewer_pairs_are_among_more_and_the_same_for_everyone(tmp_path: Path) -> None:
    rows = [row(f"p{p}", n, "a", "b") for p in range(3) for n in range(20)]
    pairs = read_pairs((str(written(tmp_path / "pairs.jsonl", rows)),), "path")
    few, more = sample_pairs(pairs, 4), sample_pairs(pairs, 9)
    assert Counter(pair.paradigm for pair in few) == {"p0": 4, "p1": 4, "p2": 4}
    assert set(few) < set(more) < set(sample_pairs(pairs, None))
    assert few == sample_pairs(pairs, 4)
    numbers = [{pair.number for pair in few if pair.paradigm == f"p{p}"} for p in range(3)]
    assert numbers[0] != numbers[1], "paradigms are drawn apart"


def test_pairs_of_the_supplement_have_the_names_of_their_files(tmp_path: Path) -> None:
    """BabyLM's files: the supplement has no UID, BLiMP filtered writes pair_id."""
    sentences = {"sentence_good": "Who? David.", "sentence_bad": "Who? Bread."}
    written(tmp_path / "qa_easy.jsonl", [{"row": 0, "fragment": "sentence", **sentences}] * 2)
    written(tmp_path / "hypernym.json", [sentences])
    filtered = row("order", 0, "a", "b", pair_id=7)
    del filtered["pairID"]
    written(tmp_path / "x.jsonl", [filtered])
    pairs = read_pairs((str(tmp_path),), "path")
    assert [(pair.name, pair.phenomenon) for pair in pairs] == [
        ("hypernym/1", "hypernym"),
        ("order/7", "agreement"),
        ("qa_easy/1", "qa_easy"),
        ("qa_easy/2", "qa_easy"),
    ]
    assert (pairs[0].good, pairs[0].bad) == ("Who? David.", "Who? Bread.")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.jsonl", b'{"UID": "x"}\n', r"a.jsonl:1: expected a pair .* fields UID, and None"),
        ("b.jsonl", b"\n{oh}\n", r"b.jsonl:2: expected JSON"),
        ("c.zip", b"PK\x03\x04 no", r"c.zip: cannot be unpacked"),
        ("d.txt", b"{}", r"expected files of JSON Lines .* found none"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_pairs((str(tmp_path / name),), "measure.blimp.path")


def test_zhoblimp_has_its_paradigms_and_phenomena(real_data: Path) -> None:
    path = real_data / "tasks" / "zh" / "ZhoBLiMP" / "ZhoBLiMP.tar.gz"
    pairs = read_pairs((str(path),), "path")
    assert len({pair.paradigm for pair in pairs}) == 118
    assert len({pair.phenomenon for pair in pairs}) == 15
