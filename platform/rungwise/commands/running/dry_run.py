"""`rungwise dry-run CONFIG`: estimate parameters, memory, time and cost of pretraining."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from rungwise.commands.arguments import Commands, above_zero, add_recipe, add_verb
from rungwise.core.errors import UserError


def add(commands: Commands) -> None:
    help_text = "estimate parameters, memory, time and cost before you run"
    parser = add_verb(commands, "dry-run", dry_run, help_text)
    add_recipe(parser)
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--tokens-per-second", type=above_zero, help="of the whole run, if known")
    speed.add_argument(
        "--measure", action="store_true", help="measure the speed on some batches here"
    )


def dry_run(options: argparse.Namespace) -> None:
    """Print the estimate, from the instances if they are built; otherwise rows count as full."""
    from rungwise.core.stages import artifact as artifacts
    from rungwise.pipeline.recipe import planned_vocab_size, pretrain_stages, training
    from rungwise.pipeline.workflow import load_recipe, root_folder
    from rungwise.pretraining import estimate
    from rungwise.pretraining.config import require_gradient
    from rungwise.pretraining.estimate import Measures
    from rungwise.training.curriculum import READ_BY_NAME

    recipe = load_recipe(options.config, options.overrides)
    settings = require_gradient(training(recipe), "steps")
    console = Console()
    try:
        stages = pretrain_stages(recipe)
    except UserError as error:
        # The estimate is useful before the text is there.
        console.print(f"[yellow]the corpus cannot be read: {escape(str(error))}[/]")
        stages = {}
    root = root_folder(recipe.root)
    measures = []
    for name, config in zip(READ_BY_NAME, (recipe.instances, recipe.longer_instances), strict=True):
        built = None
        if name in stages:
            fingerprint = stages[name].fingerprint
            built = artifacts.load(artifacts.folder_of(root, name, recipe.name, fingerprint))
        if built is not None:
            measures.append(Measures.of(built))
        elif config is not None:
            measures.append(Measures.planned(config, planned_vocab_size(recipe)))
    bar = Progress(console=console, transient=True, disable=not options.measure)
    with bar:
        task = bar.add_task("batches on this machine")

        def measured(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        estimated = estimate.dry_run(
            settings,
            measures,
            recipe.compute,
            options.tokens_per_second,
            measured if options.measure else None,
        )
    _show(estimated, all(each.instances for each in measures), console)


def _show(estimated: dict[str, Any], built: bool, console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    accumulated = (
        f"{estimated['micro_batch_size']} x {estimated['accumulation']} x {estimated['workers']}"
    )
    rows = {
        "parameters": f"{estimated['parameters']:,}",
        "devices": f"{estimated['devices']}, {estimated['parallel']}",
        "batch": f"{estimated['global_batch_size']} = at most {accumulated} "
        "(micro-batch x accumulation x workers)",
        "steps": ", then ".join(
            f"{phase['steps']:,} of {phase['tokens_a_step']:,.0f} tokens "
            f"(length {phase['sequence_length']})"
            for phase in estimated["phases"]
        ),
        "tokens": f"{estimated['tokens']:,.0f}"
        + ("" if built else " (instances are not built: rows count as full)"),
        "epochs": ", then ".join(f"{phase['epochs']:.2f}" for phase in estimated["phases"])
        if built
        else "not known before instances are built",
        "operations": f"{estimated['total_flops']:.3g}, "
        f"{estimated['flops_per_token'] / 1e6:.1f} MFLOP a token",
        "memory": f"about {estimated['memory_bytes_a_device'] / 1e9:.2g} GB a device, by a formula",
        "speed": "not known: give --tokens-per-second or --measure"
        if estimated["tokens_per_second"] is None
        else f"{estimated['tokens_per_second']:,.0f} tokens/s, {estimated['tokens_per_second_is']}",
        "time": "not known" if estimated["seconds"] is None else _duration(estimated["seconds"]),
        "cost": "not known: set compute.price_per_hour"
        if estimated["cost"] is None
        else f"{estimated['cost']:,.2f}, in the unit of compute.price_per_hour",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    if seconds < 2 * 86_400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86_400:.1f} days"
