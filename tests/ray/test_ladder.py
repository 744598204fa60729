"""A ladder as one command: rungs that count and rungs that learn, asked, judged and drawn."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rungwise.core.stages.stage import plan
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.pretrainings import CurveSummary, read_points
from rungwise.evaluation.suites.items import MeasureSummary
from rungwise.forecast.curves import group_by_rung
from rungwise.pipeline.ladder import ladder_stages
from rungwise.pipeline.workflow import load_recipe, run
from rungwise.report.stage import ReportSummary
from rungwise.training.summary import PretrainSummary
from tests.conftest import small_gpt, small_recipe, write_corpus, write_recipe

SCHEDULE = {"kind": "warmup_stable_decay", "warmup_steps": 2}
PAIRS = {
    "kind": "next_paragraph",
    "minimum_words": 5,
    "train_examples": 20,
    "validation_examples": 10,
    "test_examples": 10,
}

pytestmark = pytest.mark.usefixtures("ray_session")


def test_a_ladder_from_text_to_verdicts(empty_store: Path, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    shutil.copy(empty_store, tmp_path / "artifacts")  # one is made in test_workflow.py
    corpus = write_corpus(tmp_path / "corpus", documents=24)
    gradient = small_recipe(tmp_path, corpus)["pretrain"]
    gradient["optimizer"]["schedule"] = SCHEDULE
    recipe = small_recipe(
        tmp_path / "artifacts",
        corpus,
        model={"kind": "ngram", "order": 1, "fallback_discounts": [0.5, 1.0, 1.5]},
        pretrain={"kind": "counts"},
        variants={
            "ngram1": {},
            "ngram2": {"model.order": 2},
            "lsa": {"model": {"kind": "lsa", "size": 16}, "pretrain": {"kind": "cooccurrence"}},
            "gpt": {"pretrain": gradient, **small_gpt()},
        },
        measure={"perplexity": {"kind": "perplexity"}, "polysemy": {"kind": "polysemy"}},
        tasks={"pairs": {"data": PAIRS}},
        finetune={"pooling": "mean", "sequence_length": 32, "epochs": 1},
        evaluate={"num_seeds": 2, "rivals": False},
        curve={"budgets": [0.25, 0.5, 1.0], "seeds": 1, "tasks": ["pairs"]},
    )
    recipe["compute"]["num_workers"] = 1  # two in test_workflow.py
    path = write_recipe(tmp_path / "ladder.yaml", recipe)
    loaded = load_recipe(path)

    def stages(recipe: Any) -> list[Any]:
        return list(ladder_stages(recipe).values())

    outcome = run(stages, loaded, Console(quiet=True))
    finished = outcome.artifacts
    measured = MeasureSummary.of(finished["measure/ngram2"])
    value = measured.value("perplexity", "perplexity")
    assert value is not None
    assert value.low is not None
    assert value.high is not None
    assert value.low < value.value < value.high
    assert measured.passed_over == {"polysemy": "word vectors"}
    assert "perplexity" in MeasureSummary.of(finished["measure/lsa"]).passed_over

    judged = {claim.id: claim for claim in ClaimsSummary.of(finished["claims"]).claims}
    assert judged["K1"].comparisons[0].verdict == "confirmed"  # the text calls for its next word
    assert judged["K2"].verdict == "not tested"
    points = group_by_rung(read_points(finished["curve"]))
    assert [(row.budget, row.seed) for row in points["gpt"]] == [(0.25, 0), (0.5, 0), (1.0, 0)]
    scores = EvaluateSummary.of(finished["evaluate/pairs/0.5"]).scores("gpt")
    assert points["gpt"][1].scores == {"pairs": scores}
    assert len(points["gpt"][2].scores["pairs"]) == 2
    assert not points["ngram2"][0].scores
    gpt = PretrainSummary.of(finished["pretrain"])  # the first by name
    assert points["gpt"][-1].tokens == gpt.tokens
    assert gpt.gradient
    assert [each.step for each in gpt.gradient.prolonged] == [8, 16]  # 0.8 of 10 and of 20 steps
    (ngram,) = [row for row in points["ngram2"] if row.budget == 1]
    assert ngram.documents
    assert ngram.bits == pytest.approx(measured.value("perplexity", "bits_per_byte").value)  # pyright: ignore[reportOptionalMemberAccess]
    assert [row.distinct for row in points["ngram2"]] == sorted(
        {row.distinct for row in points["ngram2"]}
    )
    headline = CurveSummary.of(finished["curve"]).headline
    cost = re.fullmatch(
        r"9 points of 3 rungs; all budgets once cost (\S+) times the largest", headline
    )
    assert cost
    assert float(cost[1]) > 1

    page = finished["ladder"].folder.read_bytes("ladder.html").decode()
    assert "ngram2" in page
    assert "Scores on pairs cannot be foretold: it takes 3 rungs, measured alike" in page
    bits = {
        finished[title].record["inputs"]["pretrain"]["fingerprint"]: score.value
        for title in finished
        if title.startswith("measure") and "/0." not in title
        if (score := MeasureSummary.of(finished[title]).value("perplexity", "bits_per_byte"))
    }
    recommended = ReportSummary.of(finished["ladder"]).recommended
    assert recommended is not None
    assert bits[recommended] <= min(bits.values()) + 0.02

    again = plan(stages(loaded), Folder.at(tmp_path / "artifacts"), loaded.name)
    assert all(row.artifact is not None for row in again)
