"""Pages of experiments: any variants, tasks and label budgets, and what their tables work out."""

import csv
import dataclasses
import io
import itertools
from pathlib import Path

import numpy as np
import pytest

from rungwise.core.configuration.canonical import csv_bytes
from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison import errors
from rungwise.evaluation.comparison.summary import EvaluateSummary, TableSummary
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.base import Panel
from rungwise.report import comparison as results
from rungwise.report.findings import gather_comparison, judge_tasks, select_stage
from rungwise.report.stage import ReportSummary
from rungwise.tasks.kinds.examples import Text
from tests.report_experiments import METRICS, Experiment, MadeTask, quickstart, whole
from tests.report_pages import Page, built, csv_rows, written_page


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return built("mlm_nsp", tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def written(
    before: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Artifact], Page, ReportSummary, Path]:
    path = tmp_path_factory.mktemp("whole")
    made = whole(before)
    return made, *written_page(made, path, fill_in_examples=0), path


def test_the_page_shows_all(written: tuple[dict[str, Artifact], Page, ReportSummary, Path]) -> None:
    made, page, summary, _ = written
    compared = gather_comparison(made)
    assert compared.variants == ("base", "no_nsp", "ltr_no_nsp", "ltr_no_nsp_bilstm")
    assert {f"task-{task.name}" for task in compared.tasks} <= page.ids
    assert {"comparison", "table", "budgets", "mix", "tuning"} <= page.ids
    for task in compared.tasks:
        assert f"scores-{task.name}.png" in summary.show
        assert f"models:/small-{task.name}/1" in page.words
    for words in (
        "BERT (base) is above BERT (no NSP) on 2 of 5 tasks; BERT (base) is above BERT (no NSP) "
        "over seeds only on 1 of 5 tasks; 2 of 5 unresolved",
        "the place of the answer to a question in a context",
        "Here and below, pretraining refers to the first variant, BERT (base)",
        f"All {len(made)} stages",
        "60 trials in 20 sweeps",
        "BERT (base) train 128 75.0%",
        "BERT (base) validation 128 37.5%",
        "BERT (LTR no NSP bilstm) minus BERT (LTR no NSP)",
    ):
        assert words in page.words, words
    assert summary.headline.startswith(
        "BERT (base) is above BERT (no NSP) on 2 of 5 tasks; BERT (base) is above BERT (no NSP)"
    )


@pytest.mark.parametrize(
    ("rival", "sentence"),
    [
        (0.80, "Without any pretraining, high by its whole name does better: "),
        (0.71, "Without any pretraining, high by its whole name does as well, as far as "),
        (0.50, ""),  # the sentence is the last, not the first
    ],
)
def test_a_rival_that_wins_is_named_first_and_is_a_row_everywhere(
    before: dict[str, Artifact], tmp_path: Path, rival: float, sentence: str
) -> None:
    scores = {"pretrained": [0.70, 0.71, 0.72], "random": [0.60, 0.61, 0.63]}
    few = {name: [score - 0.1 for score in each] for name, each in scores.items()}
    made = Experiment(before)
    made.variants([*scores], untrained=["random"])
    rivals = {"low": 0.4, "high": rival}
    made.task("one", MadeTask("classification", {None: scores, 20: few}, rivals=rivals))
    made.table()
    page, summary = written_page(made.made, tmp_path, fill_in_examples=0)
    assert summary.headline.startswith(sentence or "Pretraining raised")
    text = (tmp_path / "report.html").read_text("utf-8")
    lede = text[text.index('<p class="verdict') : text.index("</header>")]
    assert lede.index(sentence) < lede.index("Pretraining raised")
    assert "Without any pretraining, high by its whole name does worse: " in lede or sentence
    assert f"{100 * rival:.1f}%" in page.words


def test_a_variant_that_is_not_tried_with_few_labels_has_no_line(
    before: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    few, whole = {"first": [0.5, 0.6]}, {"first": [0.7, 0.8], "second": [0.6, 0.7]}
    made = Experiment(before)
    made.variants([*whole])
    # A budget of all labels beside all labels has no doubling between them.
    made.task("one", MadeTask("classification", {10: few, 2000: few, None: whole}))
    panels: list[Panel] = []
    monkeypatch.setattr(results.style, "draw_panels", lambda drawn, _: panels.extend(drawn))
    section = results.write_budgets(gather_comparison(made.made))
    assert section
    assert [[*panel.lines] for panel in panels] == [["first", "best trivial baseline"]]
    # 0.2 in 7.64 doublings
    assert section.fields["gains"] == ["one, from 10 to 2,000 labels: first +2.6"]


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
    assert [row.published_points for row in table.differences[:4]] == [None, None, None, -0.5]
    smallest = min(table.differences, key=lambda step: step.p)
    assert smallest.p_holm == pytest.approx(min(1.0, len(table.differences) * smallest.p))
    assert all(step.p <= step.p_holm <= 1 for step in table.differences)


def test_csv_files_hold_all(written: tuple[dict[str, Artifact], Page, ReportSummary, Path]) -> None:
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
        if (each["variant"], each["train_examples"], each["seed"]) == ("BERT (base)", "100", "1002")
    )
    for metric in METRICS["span"]:
        assert float(same[f"test_{metric}"]) == row.test[metric]
    assert same["test_matthews"] == ""  # of another kind of task
    numbers = [(row["train_examples"], row["all_examples"]) for row in seeds[:80:20]]
    assert numbers == [("10", "False"), ("100", "False"), ("1000", "False"), ("2000", "True")]


def test_tasks_of_other_pairs_are_told_apart(before: dict[str, Artifact], tmp_path: Path) -> None:
    made = Experiment(before)
    names = ("base", "rnn", "gpt")
    made.variants(names)
    scores = {name: [0.9 - 0.2 * n, 0.91 - 0.2 * n, 0.9 - 0.2 * n] for n, name in enumerate(names)}
    for task, used in {"alone": ["base"], "one": ["base", "gpt"], "two": ["base", "rnn"]}.items():
        of_task = {name: scores[name] for name in used}
        made.task(task, MadeTask("classification", {None: of_task}), swept=False)
    compared = gather_comparison(made.made)
    page, summary = written_page(made.made, tmp_path, fill_in_examples=0)
    assert (
        "BERT (base) is above BERT (gpt) on 1 of 1 tasks. BERT (base) is above BERT (rnn) on 1 of 1"
        in page.words
    )
    assert "BERT (base) minus BERT (gpt)" in page.words
    assert judge_tasks(compared)[1] == "above"
    assert summary.headline.startswith("BERT (base) is above BERT (gpt) on 1")


def test_two_tasks_may_share_their_data(before: dict[str, Artifact]) -> None:
    made = Experiment(before)
    made.variants(["a"])
    made.task("one", MadeTask("choice", {None: {"a": [0.6, 0.7]}}), swept=False)
    made.task("two", MadeTask("choice", {None: {"a": [0.5, 0.7]}}), swept=False)
    second = made.made["evaluate/two"]
    inputs = {**second.record["inputs"], "task": made.made["evaluate/one"].record["inputs"]["task"]}
    changed = dataclasses.replace(second, record={**second.record, "inputs": inputs})
    stages = {title: stage for title, stage in made.made.items() if title != "task/two"}
    one, two = gather_comparison({**stages, "evaluate/two": changed}).tasks
    assert two.task is one.task
    assert two.evaluation.task == "two"


def test_errors_are_what_the_predictions_say(before: dict[str, Artifact], tmp_path: Path) -> None:
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
    words = "".join(page.words.split())
    (analysis,) = results.gather_errors(made, {}).values()
    for each in analysis.classes:
        assert f"{each.name}{each.precision:.3f}{each.recall:.3f}{each.f1:.3f}" in words
    assert len(analysis.classes) == len(analysis.confusions) == 2
    for gold, prediction, count in analysis.confusions:
        assert f"{gold}{prediction}{count}" in words
    assert "<b>1</b>" in page.words  # escaped, and so text
    assert "51.2% [40.1, 60.3]" in page.words


def test_costs_are_shares_of_the_first_and_one_row_if_alike(before: dict[str, Artifact]) -> None:
    made = Experiment(before)
    made.variants(["first", "dear", "none"], untrained=["none"])
    scores = {name: [0.5, 0.6] for name in ("first", "dear", "none")}
    for task in ("one", "two"):
        made.task(task, MadeTask("choice", {None: scores}))

    def rows() -> list[tuple[str, str, float | None]]:
        costs = results.costs(gather_comparison(made.made))
        return [(row["variant"], row["tasks"], row["share"]) for row in costs]

    assert rows() == [("first", "", 1.0), ("dear", "", 2.0), ("none", "", None)]
    # On the second task "dear" went on with its text, at an eighth of the cost.
    evaluate = made.made["evaluate/two"]
    summary = EvaluateSummary.of(evaluate)
    dear = summary.variants["dear"]
    assert dear.pretraining
    cheap = dear.pretraining.model_copy(update={"flops": (dear.pretraining.flops or 0) / 8})
    variants = summary.variants | {"dear": dear.model_copy(update={"pretraining": cheap})}
    changed = summary.model_copy(update={"variants": variants})
    made.made["evaluate/two"] = changed.replace_summary(evaluate)
    assert rows()[1:3] == [("dear", "one", 2.0), ("dear", "two", 0.25)]


@pytest.mark.parametrize("value", ["=1+2", "+1", "-x", "@SUM(A1)", "\t=1", "\n=1"])
def test_no_spreadsheet_runs_a_name_as_a_formula(value: str) -> None:
    """The characters that open a formula are those of OWASP's page on CSV injection."""
    rows = [{value: value, "n": -0.5}, {"n": -1, "more": "a=b\rc"}]
    read = list(csv.reader(io.StringIO(csv_bytes(rows).decode(), newline="")))
    assert read == [[f"'{value}", "n", "more"], [f"'{value}", "-0.5", ""], ["", "-1", "a=b c"]]
