"""Seeds together and thresholds, against scikit-learn on predictions made up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison import predictions
from rungwise.evaluation.comparison.ensemble import best_threshold, combine_answers, score_ensembles
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskInfo, Text, write_examples
from tests.summaries import standing, task_of

INFO = TaskInfo("classification", ("no", "yes"), False, "f1")


def test_seeds_together_and_their_threshold_are_what_scikit_learn_scores(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gold_N = rng.random(300) < 0.2
    shares_SN = 1 / (1 + np.exp(-(rng.normal(size=(3, 300)) + 2 * gold_N - 2)))
    task = task_of(tmp_path / "task", INFO)
    examples = [Text(str(n), "w", None, INFO.labels[int(gold)]) for n, gold in enumerate(gold_N)]
    write_examples(examples, task.folder, "test")
    rows = [
        row
        for seed, shares_N in enumerate(shares_SN)
        for row in predictions.prediction_rows(
            "first", seed, examples, [said(share) for share in shares_N]
        )
    ]
    predictions.write_predictions(rows, Folder.at(tmp_path / "evaluate"))
    evaluated = standing("evaluate", tmp_path / "evaluate", Summary(headline="evaluate"))
    mean_N = shares_SN.mean(axis=0)
    alone = np.mean([f1_score(gold_N, shares_N > 0.5) for shares_N in shares_SN])
    found = {how: (score, gain) for _, how, score, gain in score_ensembles(evaluated, task)}
    score, gain = found["3 seeds together"]
    assert score == pytest.approx(f1_score(gold_N, mean_N > 0.5))
    assert gain.difference == pytest.approx(score - alone)
    # A threshold for each fifth, the best one of all on the other four.
    said_N = np.zeros(300, bool)
    for fold in range(5):
        own = np.arange(300) % 5 == fold
        tried = [(f1_score(gold_N[~own], mean_N[~own] > t), t) for t in (0, *mean_N[~own])]
        at = max(tried)[1]
        above = mean_N[~own][mean_N[~own] > at].min()
        said_N[own] = mean_N[own] > (at + above) / 2
    assert found["with a threshold"][0] == pytest.approx(f1_score(gold_N, said_N))
    assert found["with a threshold"][0] > score, "yes is rare, and half is too high"


def said(share: float) -> dict[str, Any]:
    return {"label": INFO.labels[int(share > 0.5)], "probabilities": [1 - share, share]}


def test_equal_shares_are_on_one_side_of_a_threshold() -> None:
    share_N, gold = np.array([0.4, 0.4, 0.7, 0.1]), ("yes", "yes", "no", "no")
    examples = [Text("", "", None, label) for label in gold]
    either = np.stack(
        [task_kind(INFO).sums([{"label": each}] * 4, examples) for each in INFO.labels]
    )
    assert best_threshold(share_N, either, INFO) == pytest.approx(0.25)


def test_a_threshold_can_refuse_what_is_certain() -> None:
    info, examples = replace(INFO, metric="accuracy"), [Text("", "", None, "no")]
    either = np.stack([task_kind(info).sums([{"label": each}], examples) for each in info.labels])
    assert best_threshold(np.array([1.0]), either, info) >= 1


def test_each_kind_has_its_answer_of_all_seeds() -> None:
    tags = TaskInfo("tagging", ("O", "X"), False, "accuracy")
    rows = [{"probabilities": p} for p in ([[0.6, 0.4], [0.2, 0.8]], [[0.3, 0.7], [0.3, 0.7]])]
    assert combine_answers(rows, tags) == ["X", "X"]
    assert combine_answers([{"probabilities": []}] * 2, tags) == []
    choice = TaskInfo("choice", (), False, "accuracy")
    assert (
        combine_answers([{"probabilities": [0.5, 0.2, 0.3]}, {"probabilities": [0, 0, 1]}], choice)
        == 2
    )
    several = TaskInfo("multilabel", ("a", "b"), False, "micro_f1")
    assert combine_answers([{"prediction": said} for said in (["a", "b"], ["b"], [])], several) == [
        "b"
    ]
    span = TaskInfo("span", (), False, "f1")
    assert combine_answers([{"prediction": text} for text in ("b", "a", "a", "b")], span) == "b"
    number = TaskInfo("regression", (), False, "pearson")
    assert combine_answers([{"prediction": 1.0}, {"prediction": 2.0}], number) == 1.5
