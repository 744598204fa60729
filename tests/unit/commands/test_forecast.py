"""`rungwise forecast`: rungs on exact laws, which cross where algebra says; recipes of one rung."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rungwise.forecast import curves
from rungwise.forecast.curves import Point
from rungwise.pipeline import loading
from rungwise.pipeline.loading import LoadedCurve
from rungwise.pipeline.workflow import load_recipe
from tests.conftest import Cli, small_recipe, write_corpus, write_recipe
from tests.unit.forecast.test_scores import RUNGS, lie_on_lines, list_scores
from tests.unit.pipeline.test_curve import GPT

BUDGETS = (0.125, 0.25, 0.5, 1.0)
SECONDS, TOKENS = 100.0, 1e6  # of a whole budget


def bits(rung: str, seconds: float) -> float:
    """GPT passes the 3-gram, which has 2 bits from the start, where (s / 100)^0.2 = 9 / 8."""
    return 2.0 if rung == "ngram3" else 1.2 + 0.9 * (seconds / 100) ** -0.2


def count_recipe(folder: Path, **blocks: Any) -> dict[str, Any]:
    """A recipe of a 3-gram whose perplexity is measured."""
    blocks |= {"model": {"kind": "ngram", "order": 3}, "pretrain": {"kind": "counts"}}
    blocks |= {"measure": {"perplexity": {"kind": "perplexity"}}}
    corpus = write_corpus(folder / "text", documents=3)
    return small_recipe(folder / "root", corpus, **blocks)


draw, drawn = curves.draw_curves, dict[str, dict[str, curves.Curves]]()


def draw_once(points: list[Point], priors: curves.Priors) -> dict[str, curves.Curves]:
    """The real curves, of which most commands here draw the same."""
    key = repr((points, priors))
    if key not in drawn:
        drawn[key] = draw(points, priors)
    return drawn[key]


@pytest.fixture
def ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of a 3-gram and a GPT, with points in place of a curve that was trained."""
    recipe = count_recipe(
        tmp_path,
        variants={"ngram3": {}, "gpt": GPT},
        curve={"budgets": [*BUDGETS]},
        compute={"num_workers": 2, "price_per_hour": 3.6},
    )
    points = [
        Point(
            rung=rung,
            budget=budget,
            seed=seed,
            tokens=TOKENS * budget,
            distinct=(1e9 if rung == "gpt" else TOKENS * budget),
            seconds=SECONDS * budget,
            bits=bits(rung, SECONDS * budget) * (1 + 0.001 * seed),
            fitted="gradient" if rung == "gpt" else "counts",
        )
        for rung in ("ngram3", "gpt")
        for budget in BUDGETS
        for seed in (range(2) if rung == "gpt" and budget < 0.5 else [0])
    ]
    names = {"ngram3": "3-gram", "gpt": "GPT"}
    made = LoadedCurve(points, names, {"lsa": "its loss is none of tokens"}, words=5e5)
    made.names["lsa"] = "LSA"
    monkeypatch.setattr(loading, "load_curve", lambda *_: made)
    monkeypatch.setattr(curves, "draw_curves", draw_once)
    return write_recipe(tmp_path / "ladder.yaml", recipe)


def forecast(cli: Cli, *arguments: str) -> Any:
    return json.loads(cli("forecast", *arguments, "--json"))


def test_a_crossing_is_where_the_laws_meet_and_the_better_rung_is_the_likelier(
    ladder: Path, cli: Cli
) -> None:
    result = forecast(cli, str(ladder), "--compute", "10x")
    rungs = {row["rung"]: row for row in result["rungs"]}
    gpt = rungs["gpt"]["later"]
    assert gpt["low"] <= bits("gpt", 10 * SECONDS) <= gpt["high"]
    # The interval is widened by what earlier forecasts missed; its middle is the law's.
    assert gpt["median"] == pytest.approx(bits("gpt", 10 * SECONDS), abs=0.01)
    assert rungs["gpt"]["best"] > rungs["ngram3"]["best"]
    assert rungs["ngram3"]["core_seconds"] == SECONDS  # its text has not grown
    [crossing] = result["crossings"]
    assert (crossing["passing"], crossing["passed"]) == ("gpt", "ngram3")
    assert crossing["seconds"]["low"] <= 100 * (9 / 8) ** 5 <= crossing["seconds"]["high"]


def test_seconds_and_words_say_the_same(ladder: Path, cli: Cli) -> None:
    by_factor = forecast(cli, str(ladder), "--compute", "10", "--text", "4x")
    assert forecast(cli, str(ladder), "--seconds", "1000", "--words", "2000000") == by_factor


def test_the_terminal_shows_every_figure(ladder: Path, cli: Cli) -> None:
    output = cli("forecast", str(ladder), "--compute", "10x")
    assert "GPT passes 3-gram at" in output
    assert "no forecast of LSA: its loss is none of tokens" in output
    [gpt] = [line for line in output.splitlines() if line.startswith("GPT  ")]
    assert gpt.split()[-1] == "0.5"  # 1,000 core-seconds on two cores at 3.60 an hour


def test_scores_on_tasks_are_foretold_from_the_loss(
    ladder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {rung: rung.upper() for rung in RUNGS}
    made = LoadedCurve(list_scores(lie_on_lines), names, {}, words=5e5, metrics={"topics": "f1"})
    monkeypatch.setattr(loading, "load_curve", lambda *_: made)
    [task] = forecast(cli, str(ladder), "--compute", "4x", "--text", "4x")["tasks"]
    assert task["error"] < task["last_error"]
    lines = cli("forecast", str(ladder), "--compute", "4x", "--text", "4x").splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("topics, F1"))
    best = lines[begin + 1].split()
    assert best[:2] == ["GPT", f"{task['now']['gpt']:.1%}"]
    assert best[2] == f"{task['later']['gpt']['median']:.1%}"
    assert any("topics: with the largest budgets hidden" in line for line in lines)


def test_the_plan_is_a_recipe_with_that_many_steps(ladder: Path, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "gpt.yaml"
    command = ["forecast", str(ladder), "--compute", "10x", "--text", "2x", "--plan", str(file)]
    assert f"rungwise run pretrain {file}" in cli(*command)
    recipe = load_recipe(file)
    assert recipe.model
    assert recipe.model.kind == "gpt"
    assert recipe.pretrain
    assert getattr(recipe.pretrain, "steps", None) == 800
    assert not recipe.curve
    assert "2 times the text" in file.read_text()
    assert "exists" in cli(*command, status=2)
    refused = cli(*command[:-1], str(tmp_path / "other.yaml"), "--rung", "bert", status=2)
    assert "expected a rung with a forecast (ngram3, gpt), found bert" in refused


def test_no_rung_is_planned_by_itself_while_one_that_may_be_better_is_not_foretold(
    ladder: Path, tmp_path: Path, cli: Cli
) -> None:
    file = tmp_path / "far.yaml"
    far = [str(ladder), "--compute", "101x"]  # farther than any forecast
    assert {row["rung"]: row["later"] is None for row in forecast(cli, *far)["rungs"]} == {
        "ngram3": False,
        "gpt": True,
    }
    assert "among the rungs with a forecast alone" in cli("forecast", *far)
    refused = cli("forecast", *far, "--plan", str(file), status=2)
    assert "gpt cannot be forecast at that budget and may be the best" in refused
    cli("forecast", *far, "--plan", str(file), "--rung", "ngram3")


def test_the_chances_of_masked_models_choose_no_rung_by_bits_per_byte(
    ladder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Alone in its measure, a masked model is the best of it for sure."""
    made = loading.load_curve(load_recipe(ladder), "ladder")
    masked = [
        replace(point, rung="bert", measure="bits_per_masked_token")
        for point in made.points
        if point.rung == "gpt"
    ]
    both = replace(made, points=[*masked, *made.points], names=made.names | {"bert": "BERT"})
    monkeypatch.setattr(loading, "load_curve", lambda *_: both)
    file = tmp_path / "gpt.yaml"
    cli("forecast", str(ladder), "--compute", "10x", "--plan", str(file))
    assert load_recipe(file).name.endswith("-gpt")


def test_a_ladder_without_a_curve(tmp_path: Path, cli: Cli) -> None:
    recipe = count_recipe(tmp_path)
    file = write_recipe(tmp_path / "plain.yaml", recipe)
    assert "has no block curve" in cli("forecast", str(file), status=2)
    file.write_text(yaml.safe_dump(recipe | {"curve": {"budgets": [0.25, 1]}}))
    assert f"run it first: rungwise run ladder {file}" in cli("forecast", str(file), status=2)
