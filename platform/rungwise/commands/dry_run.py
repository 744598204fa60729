"""`rungwise dry-run CONFIG`: what pretraining a recipe would take, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rungwise.core import artifact as artifacts
from rungwise.core.artifact import Artifact
from rungwise.core.config import load
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import OK
from rungwise.core.stage import Stage
from rungwise.pipeline.recipe import Recipe, check_training, planned_vocab_size, pretrain_stages
from rungwise.pipeline.workflow import root_folder
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.estimate import Measures, dry_run
from rungwise.training.curriculum import READ_BY_NAME


def dry_run_command(
    config: str, overrides: Sequence[str], tokens_per_second: float | None = None
) -> int:
    """Print it. Instances that are built are measured; else every row is taken to be full."""
    recipe = load(Recipe, config, overrides)
    check_training(recipe)
    assert recipe.model
    assert recipe.pretrain
    console = Console()
    try:
        stages = pretrain_stages(recipe)
    except UserError as error:
        # A text that is not there yet is no reason not to ask what it would take to train on it.
        console.print(f"[yellow]the corpus cannot be read: {escape(str(error))}[/]")
        stages = {}
    built: dict[str, Artifact | None] = {
        name: _built(stages[name], recipe) if name in stages else None for name in READ_BY_NAME
    }
    measures = [
        Measures.planned(settings, planned_vocab_size(recipe))
        if artifact is None
        else Measures.of(artifact)
        for settings, artifact in (
            (recipe.instances, built["instances"]),
            (recipe.longer_instances, built["longer_instances"]),
        )
        if settings is not None
    ]
    settings = PretrainStageConfig(model=recipe.model, pretrain=recipe.pretrain)
    found = dry_run(settings, measures, recipe.compute, tokens_per_second=tokens_per_second)
    show(found, all(each.instances for each in measures), console)
    return OK


def _built(stage: Stage, recipe: Recipe) -> Artifact | None:
    root = root_folder(recipe.root)
    return artifacts.load(artifacts.folder_of(root, stage.name, recipe.name, stage.fingerprint))


def show(found: dict[str, Any], built: bool, console: Console) -> None:
    """Print what `dry_run` found as a person reads it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    accumulated = f"{found['micro_batch_size']} x {found['accumulation']} x {found['workers']}"
    rows = {
        "parameters": f"{found['parameters']:,}",
        "devices": f"{found['devices']}, {found['parallel']}",
        "batch": f"{found['global_batch_size']} = at most {accumulated} "
        "(micro-batch x accumulation x workers)",
        "steps": ", then ".join(
            f"{phase['steps']:,} of {phase['tokens_a_step']:,.0f} tokens "
            f"(length {phase['sequence_length']})"
            for phase in found["phases"]
        ),
        "tokens": f"{found['tokens']:,.0f}"
        + ("" if built else " (instances are not built: rows taken as full)"),
        "epochs": ", then ".join(f"{phase['epochs']:.2f}" for phase in found["phases"])
        if built
        else "not known before instances are built",
        "operations": f"{found['total_flops']:.3g}, {found['flops_per_token'] / 1e6:.1f} MFLOP a "
        "token",
        "memory": f"about {found['memory_bytes_a_device'] / 1e9:.1f} GB a device, by rule",
        "speed": "not known"
        if found["tokens_per_second"] is None
        else f"{found['tokens_per_second']:,.0f} tokens/s, {found['tokens_per_second_is']}",
        "time": "not known" if found["seconds"] is None else _duration(found["seconds"]),
        "cost": "not known: set compute.price_per_hour"
        if found["cost"] is None
        else f"{found['cost']:,.2f}, in the unit of compute.price_per_hour",
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
