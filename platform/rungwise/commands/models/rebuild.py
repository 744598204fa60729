"""`rungwise rebuild MODEL --into FOLDER`: rebuild a model elsewhere and compare every file."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_artifact, add_verb, find_artifact


def add(commands: Commands) -> None:
    parser = add_verb(commands, rebuild, "rebuild a model elsewhere and compare every file")
    add_artifact(parser)
    parser.add_argument("--into", required=True, metavar="FOLDER", help="root to build below")


def rebuild(options: argparse.Namespace) -> None:
    """Print each artifact and its files that differ. Raises DataError if any file differs."""
    from pathlib import Path

    from rich.console import Console

    from rungwise.core.configuration.compute import ComputeConfig
    from rungwise.core.configuration.config import validate
    from rungwise.core.console import plain_console
    from rungwise.core.errors import DataError, UserError
    from rungwise.core.stages.artifact import chain
    from rungwise.core.tracking.store import default_uri
    from rungwise.core.tracking.tracker import Tracker
    from rungwise.pipeline import rebuilding, runner
    from rungwise.pipeline.workflow import root_folder, spool_folder

    artifacts = chain(find_artifact(options))
    stages = rebuilding.restore_stages(artifacts)
    root, recipe = root_folder(options.into), artifacts[-1].record["recipe"]
    own = artifacts[-1].folder.uri.rsplit("/", 2)[0]
    # There, everything is built, and would be compared with itself.
    if root.uri == own or Path(root.uri).resolve() == Path(own).resolve():
        raise UserError(f"{root.uri} holds the model itself; give another folder with --into")
    compute = validate(ComputeConfig, recipe["compute"], f"compute of {artifacts[-1].folder.uri}")
    console = Console(highlight=False)

    def tracker() -> Tracker:
        return Tracker(default_uri(root, None), "rebuilt", spool_folder(root))

    outcome = runner.run(
        stages, root, artifacts[-1].label, compute, tracker, console, recipe | {"root": root.uri}
    )
    say = plain_console().print
    say()
    faults = []
    for before, stage in zip(artifacts, stages, strict=True):
        compared = rebuilding.compare(before, outcome.artifacts[stage.display_name])
        omitted = len(before.record["files"]) - compared.compared
        state = ", ".join(compared.different) + " differ" if compared.different else "same bytes"
        state += f"; {omitted:,} with timestamps not compared" * (omitted > 0)
        say(f"{before.stage:<12} {before.fingerprint}  {compared.compared:>5,} files  {state}")
        faults += [f"{before.folder.path(name)} differs if rebuilt" for name in compared.different]
    if faults:
        raise DataError("\n".join(faults))
