"""Perplexity of lines of a file: each apart, or one after the other."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rungwise.core.errors import DataError
from rungwise.evaluation.suites.perplexity import PerplexitySuite
from rungwise.models.families import kneser_ney, ngram_tables
from rungwise.tokenizer import CLS_ID, SEP_ID
from tests.toy_rungs import FIRST_WORD, toy_rung

WORDS = ["a", "b", "c"]


@dataclasses.dataclass(frozen=True)
class Counts:
    """Finds token n of a text e to the power of n + 1 less likely than certain."""

    is_exact: bool = True

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return [-np.arange(1.0, len(text) + 1) for text in texts]


def written(folder: Path) -> tuple[str, ...]:
    (folder / "test.txt").write_text(" a b \n\n c\né\n", encoding="utf-8")
    return (str(folder / "test.txt"),)


@pytest.mark.parametrize(("contiguous", "nats"), [(False, [6, 3, 3]), (True, [6, 9, 13])])
def test_an_item_is_a_line(contiguous: bool, nats: list[float], tmp_path: Path) -> None:
    suite = PerplexitySuite(path=written(tmp_path), contiguous=contiguous)
    measured = suite.measure(toy_rung(tmp_path, WORDS, Counts()), "test")
    items = {each.metric: each for each in measured.items}
    assert items["perplexity"].names == ["test.txt:1", "test.txt:3", "test.txt:4"]
    assert items["perplexity"].numbers.tolist() == [[nats[0], 3], [nats[1], 2], [nats[2], 2]]
    assert items["bits_per_byte"].numbers[:, 1].tolist() == [3, 1, 2]


def test_an_ngram_model_begins_anew_behind_each_line(tmp_path: Path) -> None:
    texts = [[FIRST_WORD, FIRST_WORD + 1, SEP_ID], [FIRST_WORD + 2, SEP_ID]]
    ids = np.concatenate(texts).astype(np.uint16)
    table = ngram_tables.count_ngrams(ids, np.array([0, 3, 5]), 3, CLS_ID)
    model = kneser_ney.estimate_model(
        table, FIRST_WORD + 3, CLS_ID, kneser_ney.Smoothing((0.5, 1.0, 1.5))
    )
    rung = toy_rung(tmp_path, WORDS, dataclasses.replace(model, end_id=SEP_ID))
    apart, together = (
        PerplexitySuite(path=written(tmp_path), contiguous=contiguous).measure(rung, "test").items
        for contiguous in (False, True)
    )
    assert apart[0].numbers.tolist() == together[0].numbers.tolist()
    assert math.exp(apart[0].numbers[:, 0].sum() / 7) < len(WORDS) + FIRST_WORD


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"contiguous": True}, "set path"),
        ({"path": ["x"], "documents": 3}, "leave out path or documents"),
    ],
)
def test_keys_that_contradict_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PerplexitySuite(**keys)


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    suite = PerplexitySuite(path=(str(tmp_path / "blank.txt"),))
    with pytest.raises(DataError, match=r"measure.test.path: expected lines of text"):
        suite.measure(toy_rung(tmp_path, WORDS, Counts()), "test")
