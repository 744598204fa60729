"""Pages of experiments: any variants, tasks and label budgets, and what their tables work out."""

import csv
import dataclasses
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from rungwise.core.stages.artifact import Artifact
from rungwise.core.wording import csv_bytes
from rungwise.evaluation.comparison import errors
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.comparison.table import TableSummary
from rungwise.evaluation.statistics import Estimate
from rungwise.report import palette
from rungwise.report.palette import series
from rungwise.report.sections import budgets, findings, tuning
from rungwise.report.sections import comparison as results
from rungwise.report.sections.variants import (
    VariantComparison,
    VariantSweep,
    gather_comparison,
    select_stage,
)
from rungwise.report.stage import ReportSummary
from rungwise.tasks.kinds.examples import Text
from rungwise.tuning.record import SweepSummary
from tests.report_experiments import METRICS, Experiment, MadeTask, quickstart, whole
from tests.report_pages import Page, built, csv_rows, written_page
from tests.small_models import objective_of
from tests.toy_sweeps import swept

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return built("mlm_nsp", tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def written(
    before: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Artifact], Page, ReportSummary, Path]:
    """Four variants on five tasks with three budgets, and their page."""
    path = tmp_path_factory.mktemp("whole")
    made = whole(before)
    return made, *written_page(made, path, fill_in_examples=0), path


def _compared(made: dict[str, Artifact]) -> VariantComparison:
    compared = gather_comparison(made)
    assert compared is not None
    return compared


def _two(before: dict[str, Artifact], **scores: list[float]) -> VariantComparison:
    made = Experiment(before)
    made.variants(list(scores))
    made.task("one", MadeTask("classification", {None: scores}))
    return _compared(made.made)


# The page.


def test_many_systems_tasks_and_budgets_are_all_on_the_page(
    written: tuple[dict[str, Artifact], Page, ReportSummary, Path],
) -> None:
    made, page, summary, _ = written
    compared = _compared(made)
    assert compared.variants == ("base", "no_nsp", "ltr_no_nsp", "ltr_no_nsp_bilstm")
    assert {f"task-{task.name}" for task in compared.tasks} <= page.ids
    assert {"comparison", "table", "budgets", "mix", "tuning"} <= page.ids
    for task in compared.tasks:
        assert {f"scores-{task.name}.png", f"differences-{task.name}.png"} <= set(summary.show)
        assert f"models:/small-{task.name}/1" in page.words
    for words in (
        "base is above no_nsp on 2 of 5 tasks; base is above no_nsp over seeds only on 1 of 5 "
        "tasks; 2 of 5 unresolved",
        "5 tasks: sst-2, sts-b, conll-2003, squad and swag, each with all its labelled examples "
        "and with 10, 100 and 1,000 of them",
        "the place of the answer to a question in a context",
        "accuracy of the unanswerable",
        "Here and below, pretraining refers to the first variant, base",
        f"All {len(made)} stages",
        "60 trials in 20 sweeps",
        "base train 128 0.0% 75.0% 33.3% 77",  # of 8 examples 6 are cut, of 90 words 30
        "base validation 128 37.5% nothing is cut",  # 3 of 8 are read in windows
        "no_nsp: the weights of the best of 3 epochs on validation were kept and scored; by seed, "
        "these are epochs 1, 2, 3",
        "ltr_no_nsp_bilstm minus ltr_no_nsp",  # the places where a name may break are no letters
    ):
        assert words in page.words, words
    assert summary.headline.startswith("sst-2: base against no_nsp unresolved, +1.2 points [")
    assert summary.headline.endswith("; 3 of 5 tasks resolved")


@pytest.mark.parametrize(
    ("rival", "sentence", "headline"),
    [
        (0.80, "Better without pretraining: on one, high by its whole name, has", "beats"),
        (
            0.71,
            "As good without pretraining, as far as can be told: on one, ",
            "cannot be told from",
        ),
        (0.50, "", ""),  # the sentence is the last, not the first
    ],
)
def test_a_rival_that_wins_is_named_first_and_is_a_row_everywhere(
    before: dict[str, Artifact], tmp_path: Path, rival: float, sentence: str, headline: str
) -> None:
    scores = {"pretrained": [0.70, 0.71, 0.72], "random": [0.60, 0.61, 0.63]}
    few = {name: [score - 0.1 for score in each] for name, each in scores.items()}
    made = Experiment(before)
    made.variants([*scores], untrained=["random"])
    rivals = {"low": 0.4, "high": rival}
    made.task("one", MadeTask("classification", {None: scores, 20: few}, rivals=rivals))
    made.table()
    page, summary = written_page(made.made, tmp_path, fill_in_examples=0)
    first = f"one: high {100 * rival:.1f}% {headline} pretrained 71.0%; one: pretrained above "
    assert summary.headline.startswith(first if headline else "one: pretrained above random")
    text = (tmp_path / "report.html").read_text("utf-8")
    lede = text[text.index('<p class="verdict') : text.index("</header>")]
    assert lede.index(sentence) < lede.index("Pretraining raised")
    assert "Worse without pretraining: on one, high by its whole name, has" in lede or headline
    assert f"Without pretraining: test accuracy {100 * rival:.1f}%" in page.words
    for file, rows in (("table.csv", 1), ("budgets.csv", 2)):
        means = [r["mean"] for r in csv_rows(tmp_path / file) if r["variant"] == "high"]
        assert means == [str(rival)] * rows
    pairs = [(r["first"], r["second"]) for r in csv_rows(tmp_path / "differences.csv")]
    assert pairs.count(("random", "high")) == 2


def test_a_variant_that_is_not_tried_with_few_labels_has_no_line(
    before: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    few, whole = {"first": [0.5, 0.6]}, {"first": [0.7, 0.8], "second": [0.6, 0.7]}
    made = Experiment(before)
    made.variants([*whole])
    made.task("one", MadeTask("classification", {10: few, None: whole}))
    names: list[str] = []
    draw = budgets.style.draw_estimates

    def record(*arguments: Any, **options: Any) -> None:
        names.append(arguments[-1])
        draw(*arguments, **options)

    monkeypatch.setattr(budgets.style, "draw_estimates", record)
    assert budgets.write_budgets(_compared(made.made))
    assert names == ["first", "best trivial baseline"]


def test_published_differences_have_columns_of_their_own_with_their_source(
    written: tuple[dict[str, Artifact], Page, ReportSummary, Path],
) -> None:
    made, page, _, path = written
    table = TableSummary.of(made["table"])
    assert "Published: Devlin et al. 2019, table 5 (T7)" in page.words
    text = (path / "report.html").read_text("utf-8")
    section = text[text.index('<section id="table">') : text.index('<section id="budgets">')]
    cells = section.count('<td class="n reference">')
    assert cells == len(table.differences) == 15
    # One header for each task says so above them, and no other cell has a mark.
    assert section.count('<th class="n reference">published</th>') == 5
    for sign in ("agrees", "disagrees", "unresolved"):
        expected = sum(row.sign == sign for row in table.differences)
        assert section.count(f'title="{sign}"') == expected
    assert any(row.sign == "unresolved" for row in table.differences)
    steps = csv_rows(path / "table_differences.csv")
    assert [row["published_points"] for row in steps[:3]] == ["", "", ""]
    assert steps[3]["published_points"] == "-0.5"
    smallest = min(table.differences, key=lambda step: step.p)
    assert smallest.p_holm == pytest.approx(min(1.0, len(steps) * smallest.p))
    assert all(step.p <= step.p_holm <= 1 for step in table.differences)


def test_csv_files_hold_every_task_budget_system_seed_and_pair(
    written: tuple[dict[str, Artifact], Page, ReportSummary, Path],
) -> None:
    made, _, _, path = written
    seeds = csv_rows(path / "seeds.csv")
    assert len(seeds) == 5 * 4 * 4 * 5  # tasks, numbers of examples, variants, seeds
    squad = [row for row in seeds if row["task"] == "squad"]
    row = next(
        row for row in EvaluateSummary.of(made["evaluate/squad/100"]).rows if row.seed == 1002
    )
    same = next(
        each
        for each in squad
        if (each["variant"], each["train_examples"], each["seed"]) == ("base", "100", "1002")
    )
    for metric in METRICS["span"]:
        assert float(same[f"test_{metric}"]) == row.test[metric]
    assert same["test_matthews"] == ""  # of another kind of task
    pairs = csv_rows(path / "differences.csv")
    assert len(pairs) == 5 * 4 * 6
    assert {(row["first"], row["second"]) for row in pairs} == set(
        itertools.combinations(("base", "no_nsp", "ltr_no_nsp", "ltr_no_nsp_bilstm"), 2)
    )
    budgets = csv_rows(path / "budgets.csv")
    assert [row["train_examples"] for row in budgets[:16:4]] == ["10", "100", "1000", "2000"]
    assert [row["all_examples"] for row in budgets[:16:4]] == ["False"] * 3 + ["True"]
    weights = [float(row["weight"]) for row in csv_rows(path / "mix.csv")[:5]]
    assert sum(weights) == pytest.approx(1)


# What is worked out.


def test_a_task_may_try_fewer_systems_than_another(
    before: dict[str, Artifact], tmp_path: Path
) -> None:
    made = Experiment(before)
    made.variants(("base", "rnn", "gpt"))
    scores = {
        name: [0.5 + 0.1 * n, 0.52 + 0.1 * n] for n, name in enumerate(("base", "rnn", "gpt"))
    }
    fewer = {name: scores[name] for name in ("base", "gpt")}
    made.task("few", MadeTask("classification", {None: fewer, 40: fewer}), swept=False)
    made.task("all", MadeTask("classification", {None: scores, 40: scores}), swept=False)
    made.table()
    page, _ = written_page(made.made, tmp_path, fill_in_examples=0)
    assert "rnn" in page.words
    rows = csv_rows(tmp_path / "table_differences.csv")
    assert [(row["task"], row["variant"], row["minus"]) for row in rows] == [
        ("few", "gpt", "base"),
        ("all", "rnn", "base"),
        ("all", "gpt", "rnn"),
    ]


def test_tasks_with_one_variant_or_another_pair_are_told_apart(
    before: dict[str, Artifact], tmp_path: Path
) -> None:
    made = Experiment(before)
    names = ("base", "rnn", "gpt")
    made.variants(names)
    scores = {name: [0.9 - 0.2 * n, 0.91 - 0.2 * n, 0.9 - 0.2 * n] for n, name in enumerate(names)}
    for task, used in {"alone": ["base"], "one": ["base", "gpt"], "two": ["base", "rnn"]}.items():
        of_task = {name: scores[name] for name in used}
        made.task(task, MadeTask("classification", {None: of_task}), swept=False)
    compared = _compared(made.made)
    page, summary = written_page(made.made, tmp_path, fill_in_examples=0)
    board = results.judge_tasks(compared)
    assert board.verdicts.keys() == {"one", "two"}
    assert (board.name, board.pair) == ("above", None)
    assert "base is above gpt on 1 of 1 tasks. base is above rnn on 1 of 1 tasks." in page.words
    assert "base minus gpt" in page.words
    assert "differences-alone.png" not in summary.show
    assert summary.headline.startswith("one: base above gpt by ")
    assert summary.headline.endswith("; 2 of 2 tasks resolved")
    # A variant has its look wherever it stands in a task.
    two = compared.tasks[2]
    own = results.draw_scores(two, compared.looks)
    assert own != results.draw_scores(two, {**compared.looks, "rnn": palette.series(1)})


def test_no_name_of_a_system_means_anything(before: dict[str, Artifact]) -> None:
    scores = ([0.7, 0.72, 0.71], [0.6, 0.61, 0.6])
    named = [
        _two(before, **dict(zip(names, scores, strict=True)))
        for names in (("pretrained", "random"), ("random", "pretrained"), ("x", "y"))
    ]
    assert [results.judge_tasks(compared).name for compared in named] == ["above"] * 3
    lines = [findings.headline({}, objective_of("mlm"), compared) for compared in named]
    assert lines[1] == lines[0].replace("pretrained above random", "random above pretrained")
    looks = {
        results.draw_differences(compared.tasks[0], compared.looks)
        == results.draw_differences(named[2].tasks[0], named[2].looks)
        for compared in named
    }
    assert looks == {True, False}  # only the names differ, and they are drawn


def test_a_variant_with_more_pretrainings_is_compared_by_those_of_both(
    before: dict[str, Artifact],
) -> None:
    (task,) = _two(before, often=[0.9, 0.7], once=[0.6, 0.5]).tasks
    again = [
        row.model_copy(update={"pretraining": 1, "seed": row.seed + 2, "test": {"accuracy": 0.1}})
        for row in task.evaluation.rows
        if row.variant == "often"
    ]
    rows = (*task.evaluation.rows, *again)
    evaluation = task.evaluation.model_copy(update={"rows": rows})
    ours, theirs = evaluation.pair_scores("often", "once")
    assert (ours, theirs) == ([0.9, 0.7], [0.6, 0.5])
    more = dataclasses.replace(task, evaluation=evaluation)
    looks = {name: palette.series(place) for place, name in enumerate(("often", "once"))}
    assert results.draw_differences(more, looks).startswith(PNG)
    assert results.draw_scores(more, looks).startswith(PNG)


def test_budgets_are_in_order_and_end_with_all_examples(before: dict[str, Artifact]) -> None:
    scores = {"a": [0.6, 0.7]}
    made = Experiment(before)
    made.variants(["a"])
    made.task("one", MadeTask("choice", {500: scores, None: scores, 20: scores}))
    made.task("two", MadeTask("choice", {None: scores}))
    one, two = _compared(made.made).tasks
    assert [each.budget for each in one.by_budget] == [20, 500, None]
    assert [each.budget for each in two.by_budget] == [None]
    assert budgets.write_budgets(_compared(made.made))


def test_two_tasks_may_share_their_data(before: dict[str, Artifact]) -> None:
    made = Experiment(before)
    made.variants(["a"])
    made.task("one", MadeTask("choice", {None: {"a": [0.6, 0.7]}}), swept=False)
    made.task("two", MadeTask("choice", {None: {"a": [0.5, 0.7]}}), swept=False)
    second = made.made["evaluate/two"]
    inputs = {**second.record["inputs"], "task": made.made["evaluate/one"].record["inputs"]["task"]}
    changed = dataclasses.replace(second, record={**second.record, "inputs": inputs})
    stages = {title: stage for title, stage in made.made.items() if title != "task/two"}
    one, two = _compared({**stages, "evaluate/two": changed}).tasks
    assert two.task is one.task
    assert two.evaluation.task == "two"


def test_selection_is_set_against_new_seeds_on_the_same_split(before: dict[str, Artifact]) -> None:
    task = _compared(quickstart(before)).tasks[0]
    for row, name in zip(results.selections(task), ("pretrained", "random"), strict=True):
        scores = task.evaluation.scores(name, "validation")
        validation = sum(scores) / len(scores)
        assert row["variant"] == name
        assert row["validation"] == pytest.approx(validation)
        assert row["lost"] == pytest.approx(validation - row["score"])


def test_where_the_first_variant_errs_is_what_the_predictions_say(
    before: dict[str, Artifact], tmp_path: Path
) -> None:
    made, rng, rows = quickstart(before), np.random.default_rng(0), []
    texts = [
        Text(f"a:{n}", f"<b>{n}</b> " * (n % 9 + 1), None, ("no", "yes")[n % 2]) for n in range(50)
    ]
    for variant, seed in itertools.product(("pretrained", "random"), (1000, 1001)):
        shares = [float(share) for share in rng.uniform(size=len(texts))]
        said = [
            {"label": ("no", "yes")[share > 0.5], "probabilities": [1 - share, share]}
            for share in shares
        ]
        rows += errors.prediction_rows(variant, seed, texts, said, "label")
    ((title, evaluate),) = select_stage(made, "evaluate").items()
    errors.write_predictions(rows, evaluate.folder)
    summary, noise = EvaluateSummary.of(evaluate), {"0.1": Estimate(0.512, 0.401, 0.603, 2)}
    variants = {k: v.model_copy(update={"noise": noise}) for k, v in summary.variants.items()}
    noisy = summary.model_copy(update={"variants": variants})
    made[title] = noisy.replace_summary(evaluate)
    page, _ = written_page(made, tmp_path, fill_in_examples=0)
    table = pd.read_parquet(evaluate.folder.path(errors.FILE))
    own = table[table.variant == "pretrained"]
    expected: Any = precision_recall_fscore_support(own.gold, own.prediction, labels=["no", "yes"])
    for row, numbers in zip(
        csv_rows(tmp_path / "errors_classes.csv"), zip(*expected, strict=True), strict=True
    ):
        scores = [float(row[name]) for name in ("precision", "recall", "f1", "gold")]
        np.testing.assert_allclose(scores, numbers, atol=1e-9)
        assert all(f"{number:.3f}" in page.words for number in numbers[:3])
    matrix = confusion_matrix(own.gold, own.prediction, labels=["no", "yes"])
    for row in csv_rows(tmp_path / "errors_confusion.csv"):
        places = [("no", "yes").index(row[name]) for name in ("gold", "said")]
        assert int(row["count"]) == matrix[tuple(places)]
    assert "<b>1</b>" in page.words  # escaped, and so text
    assert "51.2% [40.1, 60.3]" in page.words
    assert [(r["rate"], r["mean"]) for r in csv_rows(tmp_path / "noise.csv")] == [
        ("0.1", "0.512")
    ] * 2


def test_costs_are_shares_of_the_first_and_one_row_where_tasks_agree(
    before: dict[str, Artifact],
) -> None:
    made = Experiment(before)
    made.variants(["first", "dear", "none"], untrained=["none"])
    scores = {name: [0.5, 0.6] for name in ("first", "dear", "none")}
    for task in ("one", "two"):
        made.task(task, MadeTask("choice", {None: scores}))
    rows = results.costs(_compared(made.made))
    assert [(row["variant"], row["task"], row["share"]) for row in rows] == [
        ("first", "", 1.0),
        ("dear", "", 2.0),
        ("none", "", None),
    ]

    evaluate = made.made["evaluate/two"]

    def shares(**flops: float) -> list[tuple[str, float]]:
        """By task, what "dear" costs of the first if variants cost other operations on the second
        task, as weights do that went on with its text."""
        summary = EvaluateSummary.of(evaluate)
        variants = dict(summary.variants)
        for name, count in flops.items():
            cost = variants[name].pretraining
            assert cost
            other = cost.model_copy(update={"flops": count * (cost.flops or 0)})
            variants[name] = variants[name].model_copy(update={"pretraining": other})
        changed = summary.model_copy(update={"variants": variants})
        made.made["evaluate/two"] = changed.replace_summary(evaluate)
        rows = results.costs(_compared(made.made))
        return [(row["task"], row["share"]) for row in rows if row["variant"] == "dear"]

    assert shares(dear=1 / 8) == [("one", 2.0), ("two", 0.25)]
    assert shares(first=4) == [("one", 2.0), ("two", 0.5)]


def test_settings_say_where_systems_differ(before: dict[str, Artifact]) -> None:
    task = _compared(quickstart(before)).tasks[0]
    differ = {row["key"]: row["values"] for row in results.settings(task) if row["differ"]}
    assert differ == {"initialisation": ["pretrained", "random"]}


def test_layers_are_those_of_the_systems_that_mix(before: dict[str, Artifact]) -> None:
    made = whole(before)
    mixed = budgets.layer_weights(_compared(made))
    assert [task.name for task, _ in mixed] == ["sst-2", "sts-b", "conll-2003"]
    for _, variants in mixed:
        assert list(variants) == ["base", "no_nsp"]
        for weights in variants.values():
            assert weights.shape == (5, 5)  # seeds, layers
            assert weights.sum(axis=1) == pytest.approx(1)


def test_systems_look_different_however_many_there_are() -> None:
    looks = [palette.series(place) for place in range(28)]
    assert len(set(looks)) == 28
    assert len({look.colour for look in looks[:7]}) == 7
    assert len({look.marker for look in looks[:7]}) == 7


RATES = {"kind": "loguniform", "low": 1e-5, "high": 1e-1}
USES = [{"kind": "full"}, {"kind": "discriminative", "decay": 0.9}]
SPACE = {
    "finetune.learning_rate": RATES,
    "finetune.batch_size": {"kind": "choice", "values": [16, 32]},
    "finetune.adaptation": {"kind": "choice", "values": USES},
}
LISTS: dict[str, Any] = {
    "space": {
        "finetune.pooling": {"kind": "choice", "values": ["cls", "mean"]},
        "finetune.loaded_layers": {"kind": "choice", "values": [None, 1]},
    }
}


def of(task: str, variant: str, sweep: Artifact) -> VariantSweep:
    look = series(("first", "second", "third").index(variant))
    settings = sweep.record["config"]["sweep"]
    return VariantSweep(task, variant, look, SweepSummary.of(sweep), settings)


def several(folder: Path) -> list[VariantSweep]:
    """Two variants on one task, which share a key, and one of them on another."""
    block: dict[str, Any] = {"space": SPACE, "trials": 9, "halving": {"grace_period": 0.2}}
    rates = {"finetune.learning_rate": RATES, "finetune.dropout": {"kind": "uniform"}}
    rates["finetune.dropout"] |= {"low": 0.0, "high": 0.5}
    other: dict[str, Any] = block | {"space": rates}
    return [
        of("pairs", "first", swept(folder, {"epochs": 5}, failed=1, **block)),
        of("pairs", "second", swept(folder, {"epochs": 5}, 0.1, seed=1, **other)),
        of("tags", "first", swept(folder, {"epochs": 2}, **LISTS)),
    ]


def picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_the_plot_of_sweeps_has_a_panel_for_each_task(tmp_path: Path) -> None:
    sweeps, draw = several(tmp_path), tuning.draw_sweeps
    data = draw(sweeps)
    assert data == draw(sweeps)
    one = draw([sweep for sweep in sweeps if sweep.task == "pairs"])
    larger, smaller = picture(data).size, picture(one).size
    assert larger[0] * larger[1] > 1.3 * smaller[0] * smaller[1]
    # More than a frame: curves, points or lines in the colours of two variants.
    assert len(np.unique(np.asarray(picture(data).convert("P")))) > 20
    block = {"space": {"finetune.learning_rate": RATES}, "trials": 1}
    single = [of("pairs", "first", swept(tmp_path, {"epochs": 1}, **block))]
    assert picture(draw(single)).width > 500


def test_the_table_has_every_trial_of_every_sweep_and_its_winners(tmp_path: Path) -> None:
    sweeps = several(tmp_path)
    rows = tuning.trial_rows(sweeps)
    assert len(rows) == 9 + 9 + 4
    winners = [(row["task"], row["variant"], row["trial"]) for row in rows if row["winner"]]
    assert winners == [(each.task, each.variant, each.summary.best.name) for each in sweeps]
    failed = [row for row in rows if row["state"] == "failed"]
    assert [(row["trial"], row["score"], row["error"]) for row in failed] == [
        ("trial-008", "", "it broke")
    ]
    assert rows[0]["finetune.learning_rate"] > 0
    assert csv_bytes(rows).startswith(b"task,variant,trial,state,finetune.adaptation,")


@pytest.mark.parametrize("value", ["=1+2", "+1", "-x", "@SUM(A1)", "\t=1", "\n=1"])
def test_no_spreadsheet_runs_a_name_as_a_formula(value: str) -> None:
    """The characters that open a formula are those of OWASP's page on CSV injection."""
    rows = [{value: value, "n": -0.5}, {"n": -1, "more": "a=b\rc"}]
    read = list(csv.reader(io.StringIO(csv_bytes(rows).decode(), newline="")))
    assert read == [[f"'{value}", "n", "more"], [f"'{value}", "-0.5", ""], ["", "-1", "a=b c"]]
