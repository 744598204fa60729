"""`rungwise prove-resume CONFIG`: kill a run, resume it on other workers, print a certificate.

training/ray/resume_proof.py defines the comparison.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rungwise.commands.arguments import Commands, add_recipe, add_verb, positive_integer
from rungwise.core.exit_codes import FAILED, OK, plain_console

if TYPE_CHECKING:
    from rungwise.core.stages.stage import Stage
    from rungwise.pipeline.recipe import Recipe
    from rungwise.training.ray.resume_proof import Certificate


def add(commands: Commands) -> None:
    help_text = "kill a run, resume it on other workers, print a certificate"
    parser = add_verb(commands, prove_resume, help_text)
    add_recipe(parser)
    parser.add_argument(
        "--workers-after",
        type=positive_integer,
        metavar="N",
        help="workers after the kill; default: half as many, one fewer if odd, two after one",
    )


def prove_resume(options: argparse.Namespace) -> int:
    """Build the missing inputs, run the proof, print its certificate and save it below ROOT/proof/;
    return 0 if the runs agree, else 1."""
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
    _print_certificate(certificate, console)
    plain_console().print(f"certificate  {folder.path(CERTIFICATE)}")
    return OK if certificate.verdict == "same" else FAILED


def _print_certificate(certificate: Certificate, console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    workers, window = certificate.workers, certificate.kill_drawn_from
    same = f"DIFFERENT from step {certificate.first_differing_step}"
    if certificate.same_instances_at_every_step:
        same = "the same"
    rows = {
        "verdict": certificate.verdict,
        "instances of every step": same,
        "hash of all steps": certificate.data_hash["disturbed"],
        "largest loss difference": f"{certificate.largest_relative_loss_difference:.2e} "
        f"relative, allowed {certificate.allowed_loss_difference:.0e}",
        "killed": f"all processes by SIGKILL at step {certificate.killed_at_step} of "
        f"{certificate.steps}, resumed from {certificate.resumed_at_step}",
        "drawn from": f"steps {window.first_step} to {window.last_step} of "
        f"{window.part}; {certificate.steps_after_the_kill} steps came after the kill",
        "workers": f"{workers['until_the_kill']} before, {workers['after_it']} after, "
        f"{workers['undisturbed']} undisturbed",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    console.print(table)
