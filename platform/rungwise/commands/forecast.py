"""`rungwise forecast CONFIG`: what each rung of a finished ladder would be worth with more."""

from __future__ import annotations

import argparse
import dataclasses
import math
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rungwise.commands.arguments import Commands, add_recipe, add_verb, positive_number
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import plain_console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rungwise.forecast.curves import Increase
    from rungwise.forecast.forecast import Backtest, Crossing, RungForecast, TaskForecast
    from rungwise.pipeline.loading import LoadedCurve
    from rungwise.pipeline.recipe import Recipe

_MOST_CROSSINGS = 12
# Blocks of a ladder that the recipe of one rung does without.
_OF_A_LADDER = ("variants", "tasks", "finetune", "evaluate", "curve", "search", "sweep", "registry")


def add(commands: Commands) -> None:
    help_text = "say what each rung of a ladder with a curve would be worth with more time or text"
    parser = add_verb(commands, forecast, help_text)
    add_recipe(parser, help="the recipe of a ladder that has been run, with a block curve")
    time = parser.add_mutually_exclusive_group()
    help_text = "of the training of each rung"
    time.add_argument("--compute", type=_factor, default=1.0, metavar="10x", help=help_text)
    help_text = "of a core, for each rung trained by gradient"
    time.add_argument("--seconds", type=positive_number, help=help_text)
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", type=_factor, default=1.0, metavar="10x", help="of training text")
    text.add_argument("--words", type=positive_number, help="of training text, in all")
    help_text = "write the recipe of one rung at that budget"
    parser.add_argument("--plan", type=Path, metavar="FILE", help=help_text)
    help_text = "the variant for --plan; by default the likeliest best by bits per byte"
    parser.add_argument("--rung", help=help_text)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _factor(text: str) -> float:
    return positive_number(text.removesuffix("x"))


def forecast(options: argparse.Namespace) -> None:
    """Print each rung now and then, and the crossings; or write the recipe of one rung."""
    from rungwise.forecast.curves import Increase
    from rungwise.forecast.forecast import backtest, find_crossings, forecast_tasks
    from rungwise.forecast.forecast import forecast as forecast_rungs
    from rungwise.pipeline.loading import load_curve
    from rungwise.pipeline.workflow import load_recipe

    recipe = load_recipe(options.config, options.overrides)
    curve = load_curve(recipe, options.config)
    text = options.text if options.words is None else options.words / curve.words
    growth = Increase(options.compute, text, options.seconds)
    rungs = forecast_rungs(curve.points, growth)
    if options.plan is not None:
        _write_plan(recipe, rungs, growth, options)
        return
    crossings = [each for each in find_crossings(rungs, text) if each.foretold]
    tasks = forecast_tasks(curve.points, rungs)
    tested = backtest(curve.points)
    if options.json:
        rows = [
            {
                "rung": each.rung,
                "measure": each.last.measure,
                "now": dataclasses.asdict(each.now),
                "later": each.later and dataclasses.asdict(each.later),
                "best": each.best,
                "core_seconds": each.target.seconds,
                "refusal": each.refusal,
            }
            for each in rungs
        ]
        names = ("error", "coverage", "order", "last_error", "line_error", "last_order")
        numbers = {name: getattr(tested, name) for name in names}
        finite = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        result = {"rungs": rows, "crossings": [dataclasses.asdict(each) for each in crossings]}
        result["tasks"] = [dataclasses.asdict(each) for each in tasks]
        result["backtest"] = {"cells": len(tested.cells), **finite}
        Console().print_json(data=result | {"passed_over": curve.passed_over})
        return
    _print_rungs(rungs, curve.names, recipe)
    for task in tasks:
        _print_scores(task, curve)
    _print_lines(rungs, crossings, tested, curve)


def _print_rungs(rungs: Sequence[RungForecast], names: Mapping[str, str], recipe: Recipe) -> None:
    from rich.table import Table

    from rungwise.report import formats

    say, price = plain_console().print, recipe.compute.price_per_hour
    cores = recipe.compute.num_workers * recipe.compute.cpus_per_worker
    for measure in dict.fromkeys(rung.last.measure for rung in rungs):
        table = Table(box=None, pad_edge=False)
        table.add_column(formats.metric_name(measure), no_wrap=True)
        for column in ("now", "then, with 95 % interval", "best by", "core-time"):
            table.add_column(column, justify="right", no_wrap=True)
        if price is not None:
            table.add_column("price", justify="right")
        alike = [rung for rung in rungs if rung.last.measure == measure]
        for rung in sorted(alike, key=lambda rung: (rung.later or rung.now).median):
            text = "no forecast"
            if later := rung.later:
                text = f"{later.median:.3f} [{later.low:.3f}, {later.high:.3f}]"
            share = "" if rung.best is None else formats.small_percent(rung.best)
            time = formats.duration(rung.target.seconds, 0)
            row = [names[rung.rung], f"{rung.last.bits:.3f}", text, share, time]
            if price is not None:
                row.append(formats.money(rung.target.seconds / cores / 3600 * price))
            table.add_row(*row)
        say(table)
        say()


def _print_scores(task: TaskForecast, curve: LoadedCurve) -> None:
    from rich.table import Table

    from rungwise.report import formats

    say, metric = plain_console().print, curve.metrics[task.task]
    if not task.is_foretold:
        say(f"{task.task} cannot be foretold: {task.describe()}")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{task.task}, {formats.metric_name(metric)}", no_wrap=True)
    for column in ("now", "then, with 95 % interval"):
        table.add_column(column, justify="right", no_wrap=True)
    for rung, score in sorted(task.now.items(), key=lambda item: -item[1]):
        text = "no forecast"
        if later := task.later.get(rung):
            text = f"{formats.score(later.median, metric)} {formats.interval(later, metric)}"
        table.add_row(curve.names[rung], formats.score(score, metric), text)
    say(table)
    for rung, reason in task.refusals.items():
        say(f"no forecast of {curve.names[rung]} on {task.task}: {reason}")
    say(f"{task.task}: {task.describe()}")
    say()


def _print_lines(
    rungs: Sequence[RungForecast],
    crossings: Sequence[Crossing],
    tested: Backtest,
    curve: LoadedCurve,
) -> None:
    from rungwise.forecast.forecast import describe_backtest, describe_crossing

    say = plain_console().print
    for crossing in crossings[:_MOST_CROSSINGS]:
        say(describe_crossing(crossing, curve.names))
    if len(crossings) > _MOST_CROSSINGS:
        say(f"and {len(crossings) - _MOST_CROSSINGS} crossings more: --json")
    if not crossings:
        say("no rung passes another within 100 times the budget")
    say()
    reasons = {rung.rung: rung.refusal for rung in rungs if rung.refusal} | dict(curve.passed_over)
    for rung, reason in reasons.items():
        say(f"no forecast of {curve.names[rung]}: {reason}")
    if any(rung.refusal for rung in rungs):
        say("a chance to be best is among the rungs with a forecast alone")
    say(describe_backtest(tested))


def _choose_rung(rungs: Sequence[RungForecast]) -> str | None:
    """The likeliest best by bits per byte, if any. Raises UserError if another might be better."""
    alike = [rung for rung in rungs if rung.last.measure == "bits_per_byte"]
    if refused := [rung.rung for rung in alike if rung.refusal]:
        raise UserError(
            f"{', '.join(refused)} cannot be forecast at that budget and may be the best; name the "
            "rung to plan with --rung, or ask for a smaller budget"
        )
    best = max(alike, key=lambda rung: rung.best or 0.0, default=None)
    return None if best is None else best.rung


def _write_plan(
    recipe: Recipe, rungs: Sequence[RungForecast], growth: Increase, options: argparse.Namespace
) -> None:
    """Write the recipe of a rung with the steps, or passes, of that budget."""
    import yaml

    from rungwise.pipeline.experiment import change_recipe

    if options.plan.exists():
        raise UserError(f"{options.plan} exists; give --plan another file")
    forecasts = {rung.rung: rung for rung in rungs if rung.later is not None}
    name = options.rung or _choose_rung(rungs)
    if name not in forecasts:
        expected = ", ".join(forecasts) or "none, since no rung can be forecast"
        raise UserError(f"--rung: expected a rung with a forecast ({expected}), found {name}")
    rung, changed = forecasts[name], change_recipe(recipe, name)
    assert changed.model
    assert changed.pretrain
    if key := changed.pretrain.length_key(changed.model):
        length = attrgetter(key)(changed.pretrain) * rung.target.tokens / rung.last.tokens
        changed = changed.with_changes({f"pretrain.{key}": round(length)}, "--plan")
    data = {key: value for key, value in changed.raw.items() if key not in _OF_A_LADDER}
    data["name"] = f"{recipe.name}-{name}"
    later = rung.later
    assert later
    score = f"{later.median:.3f} [{later.low:.3f}, {later.high:.3f}]"
    measure = rung.last.measure.replace("_", " ")
    lines = [f"# {name} of {options.config}: {score} {measure} foretold"]
    if growth.text != 1:
        lines.append(f"# for {growth.text:g} times the text: add it to corpus.sources")
    text = "\n".join(lines) + "\n" + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    type(recipe).model_validate(yaml.safe_load(text))
    options.plan.write_text(text, encoding="utf-8")
    plain_console().print(f"{options.plan}: rungwise run pretrain {options.plan}")
