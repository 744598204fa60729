"""`rungwise plan|recipes|dry-run|prove-resume|forecast|doctor`: what a run builds, takes and
survives; what rungs of a finished ladder would be worth with more; and if this machine is fit."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rungwise.commands.parser import (
    Commands,
    add_recipe,
    add_verb,
    add_workflow,
    positive_integer,
    positive_number,
)
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import FAILED, OK, plain_console, print_table

if TYPE_CHECKING:
    from rungwise.core.stages.stage import Stage
    from rungwise.core.storage.folder import Folder
    from rungwise.forecast.curves import Increase
    from rungwise.forecast.forecast import Backtest, Crossing, RungForecast, TaskForecast
    from rungwise.pipeline.estimate import RunForecast
    from rungwise.pipeline.loading import LoadedCurve
    from rungwise.pipeline.recipe import Recipe
    from rungwise.training.config import GradientFit
    from rungwise.training.estimate import RunEstimate

# Of a certificate, which are in its file.
_LONG_PARTS = {"data_hash_by_step", "loss_by_step", "undisturbed", "made_by"}


def add(commands: Commands) -> None:
    parser = add_verb(commands, plan, "show what would be built and why")
    add_workflow(parser)
    help_text = "print the whole recipe instead: every key, with defaults and overrides"
    parser.add_argument("--resolved", action="store_true", help=help_text)
    help_text = "estimate parameters, memory, time and cost before you run"
    parser = add_verb(commands, dry_run, help_text)
    add_recipe(parser)
    help_text = "of the whole run, if known"
    parser.add_argument("--tokens-per-second", type=positive_number, help=help_text)
    help_text = "list the recipes, how long they take and what they are about"
    add_verb(commands, recipes, help_text)
    help_text = "kill a run, resume it on other workers, print a certificate"
    parser = add_verb(commands, prove_resume, help_text)
    add_recipe(parser)
    help_text = "workers after the kill; default: half as many, one fewer if odd, two after one"
    parser.add_argument("--workers-after", type=positive_integer, metavar="N", help=help_text)
    help_text = "say what each rung of a ladder with a curve would be worth with more time or text"
    parser = add_verb(commands, forecast, help_text)
    add_recipe(parser, help="the recipe of a ladder that has been run, with a block curve")
    training = parser.add_mutually_exclusive_group()
    help_text = "of the training of each rung"
    training.add_argument("--compute", type=_factor, default=1.0, metavar="10x", help=help_text)
    help_text = "of a core, for each rung trained by gradient"
    training.add_argument("--seconds", type=positive_number, help=help_text)
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", type=_factor, default=1.0, metavar="10x", help="of training text")
    text.add_argument("--words", type=positive_number, help="of training text, in all")
    help_text = "write the recipe of one rung at that budget"
    parser.add_argument("--plan", type=Path, metavar="FILE", help=help_text)
    help_text = "the variant for --plan; by default the likeliest best by bits per byte"
    parser.add_argument("--rung", help=help_text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser = add_verb(commands, doctor, "check versions, CPUs, memory, GPU, disk and server")
    add_recipe(parser, nargs="?", help="check the root and server of this recipe")


def plan(options: argparse.Namespace) -> None:
    """Print the plan; run and write nothing."""
    from rungwise.pipeline import workflow
    from rungwise.pipeline.estimate import Rates, RunForecast, describe_seconds
    from rungwise.pipeline.places import root_folder

    console = plain_console()
    recipe = workflow.load_recipe(options.config, options.overrides)
    if options.resolved:
        console.print(recipe.to_yaml(), end="")
        return
    rows = workflow.plan(options.workflow, recipe)
    root = root_folder(recipe.root)
    estimate = RunForecast(rows, recipe.compute, Rates.of(root))
    table = Table(box=None, pad_edge=False)
    # Names and reasons give way on a narrow terminal.
    table.add_column("stage", overflow="fold", min_width=20)
    table.add_column("fingerprint", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("takes", justify="right", no_wrap=True)
    table.add_column("because", overflow="fold", min_width=16)
    for row in rows:
        name = row.stage.display_name
        if row.artifact:
            state, takes = Text("cached", "cyan"), _format_seconds(row.artifact.record["seconds"])
        else:
            state, seconds = Text("build", "bold cyan"), estimate.seconds[name]
            takes = "not known" if seconds is None else describe_seconds(seconds)
        table.add_row(name, row.stage.fingerprint, state, takes, redact(row.reason))
    print_table(table, console)
    line = f"{len(estimate.seconds)} of {len(rows)} stages to build below {root.uri}"
    console.print(f"{line}: {estimate.line}" if estimate.line else line, soft_wrap=True)


def recipes(options: argparse.Namespace) -> None:
    """Print a line for each recipe, of this folder and of the package."""
    from rungwise.pipeline.places import describe_recipe, list_recipes

    for name, path in list_recipes().items():
        plain_console().print(describe_recipe(name, path))


def dry_run(options: argparse.Namespace) -> None:
    """Print a row for each training of the recipe and its variants, and what the whole takes."""
    from rungwise.pipeline.experiment import change_recipe
    from rungwise.pipeline.stages import pretrain_config
    from rungwise.pipeline.workflow import load_recipe
    from rungwise.training.estimate import device_memory
    from rungwise.training.fit_config import PretrainStageConfig, require_gradient

    recipe = load_recipe(options.config, options.overrides)
    console = Console()
    trainings: list[tuple[str, Recipe, PretrainStageConfig]] = []
    for name in recipe.variants:
        variant = change_recipe(recipe, name)
        whole = pretrain_config(variant)
        configs: dict[str, PretrainStageConfig] = {}
        for part, each in whole.pretrain.parts(whole.model).items():
            data = {"model": each.model, "pretrain": each.pretrain}
            configs[f"{name}/{part}"] = PretrainStageConfig.model_validate(data)
        for title, config in {**configs, name: whole}.items():
            if config not in [other for _, _, other in trainings]:
                trainings.append((title, variant, config))
    forecast = _forecast(recipe)
    table = Table(box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    table.add_column("model", no_wrap=True)
    for heading in ("parameters", "steps", "tokens", "operations", "memory", "time", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    faults = []
    for name, variant, config in trainings:
        price, seconds = variant.compute.price_per_hour, None
        cells = ["", f"by {config.pretrain.kind}", "", "", ""]
        if config.pretrain.length_key(config.model) == "steps":
            settings = require_gradient(config, "steps")
            result = _estimate(variant, settings, options.tokens_per_second)
            seconds, needed = result.seconds, result.memory_bytes_a_device
            cells = [f"{n:,.0f}" for n in (result.parameters, result.steps, result.training.tokens)]
            cells += [f"{result.training.flops:.3g}", f"{needed / 1e9:.2g} GB"]
            memory = device_memory(variant.compute)
            if memory is not None and needed > memory:
                faults.append(
                    f"{name}: a worker has {memory / 1e9:.3g} GB on this machine, too little; "
                    "lower compute.micro_batch_size, or set compute.parallel=fsdp"
                )
        if seconds is None and forecast:
            seconds = forecast.training_seconds(config)
        cost = f"{seconds / 3600 * price:,.2f}" if price and seconds else ""
        table.add_row(name, config.model.kind, *cells, _format_seconds(seconds), cost)
    print_table(table, console)
    for fault in faults:
        console.print(fault, style="bold red", soft_wrap=True)
    if forecast:
        line = forecast.line or "all of it is built"
        console.print(f"\nrun {_workflow(recipe)}, from text to page: {line}", soft_wrap=True)


def _workflow(recipe: Recipe) -> str:
    return "ladder" if recipe.measure else "finetune" if recipe.tasks else "pretrain"


def _forecast(recipe: Recipe) -> RunForecast | None:
    """Estimate what a recipe's workflow takes, from text to page; None if it has no text yet."""
    from rungwise.pipeline.workflow import estimate

    try:
        return estimate(_workflow(recipe), recipe)
    except UserError:
        return None


def _format_seconds(seconds: float | None) -> str:
    from rungwise.report.formats import duration

    return "not known" if seconds is None else duration(seconds, 0)


def _estimate(
    recipe: Recipe, settings: GradientFit, tokens_per_second: float | None
) -> RunEstimate:
    """The estimate of a training, from the instances if they are built, else of full rows."""
    from rungwise.core.stages import artifact as artifacts
    from rungwise.pipeline.places import root_folder
    from rungwise.pipeline.stages import pretrain_stages
    from rungwise.training.estimate import Measures, estimate_run
    from rungwise.training.feed import READ_BY_NAME

    try:
        stages = pretrain_stages(recipe)
    except UserError as error:
        # The estimate is useful before the text is there.
        plain_console().print(f"[yellow]the corpus cannot be read: {escape(redact(str(error)))}[/]")
        stages = {}
    root = root_folder(recipe.root)
    measures = []
    for name, config in zip(
        READ_BY_NAME, (recipe.training_steps[-1].instances, recipe.longer_instances), strict=True
    ):
        instances = None
        if name in stages:
            fingerprint = stages[name].fingerprint
            instances = artifacts.load(artifacts.find_folder(root, name, recipe.name, fingerprint))
        if instances is not None:
            measures.append(Measures.of(instances))
        elif config is not None:
            measures.append(Measures.planned(config, recipe.planned_vocab_size()))
    return estimate_run(settings, measures, recipe.compute, tokens_per_second)


def prove_resume(options: argparse.Namespace) -> int:
    """Prove it, print the certificate and save it in ROOT/proof/; return 1 if the runs differ."""
    from rungwise.core.configuration.canonical import fingerprint
    from rungwise.pipeline import workflow
    from rungwise.pipeline.places import root_folder
    from rungwise.pipeline.stages import chain_stages, pretrain_config
    from rungwise.training.fit_config import require_gradient
    from rungwise.training.ray.resume_proof import CERTIFICATE, prove_resume

    recipe = workflow.load_recipe(options.config, options.overrides)
    blocks = pretrain_config(recipe)
    settings = require_gradient(blocks, "steps")
    console = Console()

    def inputs(recipe: Recipe) -> list[Stage]:
        return chain_stages(recipe)[0][:-1]

    artifacts = workflow.run(inputs, recipe, console).artifacts
    name = fingerprint({"config": blocks, "at": time.time_ns()})
    folder = root_folder(recipe.root) / "proof" / name
    workers = options.workers_after
    certificate = prove_resume(
        settings, artifacts, recipe.compute, folder, workers, console=console
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in certificate.model_dump(exclude=_LONG_PARTS).items():
        table.add_row(key.replace("_", " "), str(value))
    print_table(table, console)
    plain_console().print(f"certificate  {folder.path(CERTIFICATE)}")
    return OK if certificate.verdict == "same" else FAILED


_MOST_CROSSINGS = 12
# Blocks of a ladder that the recipe of one rung does without.
_OF_A_LADDER = ("variants", "tasks", "finetune", "evaluate", "curve", "search", "sweep", "registry")


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


_MAIN_PACKAGES = ("ray", "torch", "mlflow", "tokenizers", "pyarrow", "numpy", "s3fs")
_MEMORY_GIB = 6.0
_DISK_GIB = 2.0
_SERVER_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """One row of the table: what was checked, its value, and what to do about it, if anything."""

    what: str
    value: str
    remedy: str = ""
    is_wrong: bool = False  # a run would fail


def doctor(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if any of them would make a run fail."""
    findings = list(check_machine(options.config, options.overrides))
    wrong = sum(finding.is_wrong for finding in findings)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        mark = "[yellow]look[/]" if finding.remedy else "[green]ok[/]"
        mark = "[bold red]wrong[/]" if finding.is_wrong else mark
        # Text, because markup would swallow the extras in `ray[train]`.
        texts = (Text(redact(text)) for text in (finding.what, finding.value, finding.remedy))
        table.add_row(mark, *texts)
    console = Console()
    print_table(table, console)
    console.print(f"\n{wrong} wrong" if wrong else "\nnothing wrong", highlight=False)
    return FAILED if wrong else OK


def check_machine(config: str | None, overrides: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings in the order of the table."""
    import psutil

    from rungwise.cluster.local import count_cores
    from rungwise.pipeline.places import default_places, root_folder, tracking_uri

    yield Finding("Python", platform.python_version())
    yield from _check_packages()
    cores = count_cores()
    yield Finding("CPUs", str(cores), "" if cores >= 2 else "set compute.num_workers=1")
    gigabytes = psutil.virtual_memory().available / 2**30
    remedy = f"the quickstart may need {_MEMORY_GIB:.0f} GiB"
    is_little = gigabytes < _MEMORY_GIB
    yield Finding("memory", f"{gigabytes:.1f} GiB available", remedy if is_little else "")
    yield _check_gpu()
    root, uri = default_places()
    if config is not None:
        from rungwise.pipeline.workflow import load_recipe

        recipe = load_recipe(config, overrides)
        root = root_folder(recipe.root)
        uri = tracking_uri(recipe, root)
    yield _check_disk(root)
    yield _check_tracking(uri)
    yield Finding("Ray", os.environ.get("RAY_ADDRESS", "starts here, protected by a token"))


def _check_packages() -> Iterator[Finding]:
    import importlib.metadata

    from packaging.requirements import Requirement

    for text in sorted(importlib.metadata.requires("rungwise") or []):
        requirement = Requirement(text)
        if "extra ==" in text:
            continue
        try:
            version = importlib.metadata.version(requirement.name)
            fits = requirement.specifier.contains(version, prereleases=True)
        except importlib.metadata.PackageNotFoundError:
            version, fits = "missing", False
        if not fits:
            yield Finding(requirement.name, version, f"pip install '{requirement}'", is_wrong=True)
        elif requirement.name in _MAIN_PACKAGES:
            yield Finding(requirement.name, version)


def _check_gpu() -> Finding:
    import importlib.metadata

    names = []
    with contextlib.suppress(ImportError):  # PyTorch is among the packages
        if not importlib.metadata.version("torch").endswith("+cpu"):
            import torch  # takes seconds

            names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    if not names:
        return Finding("GPU", "none; training runs on CPUs")
    return Finding("GPU", f"{', '.join(names)}; compute.gpus_per_worker=1 uses them")


def _check_disk(root: Folder) -> Finding:
    free = root.free_bytes()
    if free is None:  # in a store
        try:
            root.check_writable("root")
        except UserError as error:
            return Finding("root", root.uri, str(error), is_wrong=True)
        return Finding("root", root.uri)
    if not os.access(root.existing(), os.W_OK):
        return Finding("root", root.uri, "not writable; set another root", is_wrong=True)
    value = f"{root.uri}, {free / 2**30:.1f} GiB free"
    is_little = free < _DISK_GIB * 2**30
    return Finding("root", value, "free some space" if is_little else "")


def _check_tracking(uri: str) -> Finding:
    import requests

    from rungwise.core.tracking.store import find_database, hide_credentials, open_store

    server, database = hide_credentials(uri), find_database(uri)
    if database is not None and not database.exists():
        return Finding("MLflow", f"{server}, which the first run makes")
    remedy = "start the server, or unset MLFLOW_TRACKING_URI to use SQLite"
    try:
        if uri.startswith("http"):
            # Takes a name and password in the address, which urllib reads as a part of the host.
            health = f"{uri.rstrip('/')}/health"
            requests.get(health, timeout=_SERVER_SECONDS).raise_for_status()
        else:
            open_store(uri)
    except UserError as error:
        return Finding("MLflow", server, str(error), is_wrong=True)
    except Exception as error:
        value = f"{server} does not answer ({error})"
        return Finding("MLflow", value, remedy, is_wrong=True)
    return Finding("MLflow", f"{server} answers")
