"""`rungwise plan|recipes|dry-run|prove-resume`: what a run builds, takes and survives."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rungwise.commands import arguments
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import FAILED, OK, plain_console, print_table

if TYPE_CHECKING:
    from rungwise.core.stages.stage import Stage
    from rungwise.pipeline.estimate import RunForecast
    from rungwise.pipeline.recipe import Recipe
    from rungwise.training.config import GradientFit
    from rungwise.training.estimate import RunEstimate

# Of a certificate, which are in its file.
_LONG_PARTS = {"data_hash_by_step", "loss_by_step", "undisturbed", "made_by"}


def add(commands: arguments.Commands) -> None:
    parser = arguments.add_verb(commands, plan, "show what would be built and why")
    arguments.add_workflow(parser)
    help_text = "print the whole recipe instead: every key, with defaults and overrides"
    parser.add_argument("--resolved", action="store_true", help=help_text)
    help_text = "estimate parameters, memory, time and cost before you run"
    parser = arguments.add_verb(commands, dry_run, help_text)
    arguments.add_recipe(parser)
    help_text = "of the whole run, if known"
    parser.add_argument("--tokens-per-second", type=arguments.positive_number, help=help_text)
    help_text = "list the recipes, how long they take and what they are about"
    arguments.add_verb(commands, recipes, help_text)
    help_text = "kill a run, resume it on other workers, print a certificate"
    parser = arguments.add_verb(commands, prove_resume, help_text)
    arguments.add_recipe(parser)
    help_text = "workers after the kill; default: half as many, one fewer if odd, two after one"
    count = arguments.positive_integer
    parser.add_argument("--workers-after", type=count, metavar="N", help=help_text)


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
