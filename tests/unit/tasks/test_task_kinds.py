"""Kinds of tasks: they answer for themselves, and no other place knows which there are."""

import ast
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, check_task
from rungwise.models.trained.language_models import Sampling
from rungwise.report.comparison import gather_errors, write_comparison
from rungwise.report.findings import gather_comparison
from rungwise.report.page import environment
from rungwise.serving.predictor import Predictor, try_texts
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.data.files import build_task
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import TaskInfo, read_examples
from rungwise.tasks.kinds.kind import TaskKind
from tests.summaries import standing
from tests.toy_kind import Count, CountTable
from tests.unit.evaluation.test_compare import ONE, LocalRay, evaluated

PACKAGE = Path(__file__).resolve().parents[3] / "platform" / "rungwise"
OUTSIDE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE / "tasks" / "kinds" and path != PACKAGE / "tasks" / "interface.py"
]


def kind_tests(code: str) -> list[int]:
    """The lines that import a kind of tasks, or ask by its name which one they hold."""
    classes = {(kind.__module__, kind.__name__) for kind in KINDS.values()}
    lines: list[int] = []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.ImportFrom():
                asks = bool({(node.module, alias.name) for alias in node.names} & classes)
            case ast.Compare() | ast.Match():
                values = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                names |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                asks = bool(values & set(KINDS)) and bool({"kind", "task_kind"} & names)
            case _:
                asks = False
        if asks:
            lines.append(getattr(node, "lineno", 0))
    return lines


def test_nothing_outside_the_kinds_asks_which_kind_it_holds() -> None:
    names = [*(f'"{name}"' for name in KINDS), *(kind.__name__ for kind in KINDS.values())]
    codes = {path: path.read_text("utf-8") for path in OUTSIDE}
    named = {path: code for path, code in codes.items() if any(name in code for name in names)}
    assert len(named) > 10
    assert {path: lines for path, code in named.items() if (lines := kind_tests(code))} == {}
    for path in sorted(PACKAGE.rglob("*.j2")):
        assert not [kind for kind in KINDS if f'"{kind}"' in path.read_text("utf-8")], path


@pytest.mark.parametrize(
    "code",
    [
        "from rungwise.tasks.kinds.answers import THRESHOLD, Span",
        "windows = info.kind != 'tagging'",
        "if form.task_kind in ('classification', 'regression'): ...",
        "match info.kind:\n    case 'span' | 'generation': ...",
        "writes = kind == 'generation'",
    ],
)
def test_the_walk_would_see_a_kind(code: str) -> None:
    assert kind_tests(code) == [1]


def test_a_toy_kind_is_one_file_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its files to its row of the page."""
    monkeypatch.setitem(cast(dict[str, type[TaskKind]], KINDS), Count.name, Count)
    monkeypatch.setitem(sys.modules, "ray", LocalRay())
    rng = np.random.default_rng(0)
    words = [f"word{n}" for n in range(45)] + ["here"]
    rows = ["text\tcount"]
    for _ in range(60):
        text = rng.choice(words[:40], 5).tolist()
        here = int(rng.integers(0, 5))
        rows.append(f"{' '.join(['here'] * here + text)}\t{here}")
    (tmp_path / "counts.tsv").write_text("\n".join(rows))
    table = {"kind": "table", "columns": {"text": "text", "score": "count"}}
    block = {"format": table, "train": str(tmp_path / "counts.tsv"), "test_fraction": 0.3}
    config = validate(FilesTaskConfig, block | {"validation_fraction": 0.2})
    config = config.model_copy(update={"format": validate(CountTable, table)})
    output = Folder.at(tmp_path / "task")
    known = build_task(config, {}, output, Context())
    task = standing("task", output, known)
    test = read_examples(task, "test")
    gold = [example.target for example in test]
    median = round(float(np.median([each.target for each in read_examples(task, "train")])))
    assert known.info == TaskInfo("count", (), False, "exact_match")
    assert known.baselines["median"] == {
        "exact_match": pytest.approx(np.mean([each == median for each in gold])),
        "within_one": pytest.approx(np.mean([abs(each - median) <= 1 for each in gold])),
    }

    settings = {"num_seeds": 2, "bootstrap_resamples": 100}
    longer = {"pooling": "mean", "epochs": 10, "windows": True, "batch_size": 4}
    variants = {"first": ONE | longer, "second": ONE}
    summary = evaluated(tmp_path, task, words, variants, settings)
    predictions = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    for row in summary.rows:
        own = predictions[(predictions.variant == row.variant) & (predictions.seed == row.seed)]
        assert row.test["exact_match"] == pytest.approx((own.prediction == own.gold).mean())
    scores = summary.variants["first"].estimates["within_one"]
    assert scores.mean > known.baselines["median"]["within_one"], "the words can be counted"

    evaluation = standing(
        *("evaluate", tmp_path / "out", summary),
        inputs={"task": {"fingerprint": task.fingerprint, "stage": "task"}},
    )
    inputs = {"task": task, "evaluate": evaluation}
    assert gather_errors(inputs, {}) == {}
    section = write_comparison(gather_comparison(inputs))
    assert section is not None
    html = section.render(environment(), "report")
    assert "how many there are in a text" in html
    assert "median" in html
    answer = try_texts(Predictor(evaluation.folder), ["here word1"], Sampling())
    assert float(answer) >= 0

    kind = task_kind(known.info)
    check_task(validate(FinetuneConfig, longer), known.info)
    assert not kind.takes("pairs")
