"""`rungwise verify MODEL`: hash every file that a model depends on, and list those that changed."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_built, add_verb, built


def add(commands: Commands) -> None:
    parser = add_verb(commands, "verify", verify, "check that no file behind a model has changed")
    add_built(parser)


def verify(options: argparse.Namespace) -> None:
    """Print a line per artifact, inputs first, and one for the registry's copy. Raises DataError
    that names each changed file."""
    from rich.console import Console

    from rungwise.core.errors import DataError
    from rungwise.core.stages.artifact import chain
    from rungwise.pipeline import loading
    from rungwise.serving import promotion

    console = Console(highlight=False)
    faults: list[str] = []
    artifacts = chain(built(options))
    for artifact in artifacts:
        files = artifact.record["files"].values()
        try:
            artifact.verify()
            state = "unchanged"
        except DataError as error:
            faults.append(str(error))
            state = "CHANGED"
        megabytes = sum(file["bytes"] for file in files) / 1e6
        console.print(
            f"{artifact.stage:<12} {artifact.fingerprint}  {len(files):>5,} files "
            f"{megabytes:>10,.1f} MB  {state}",
            markup=False,
            soft_wrap=True,
        )
    if options.model.startswith(loading.REGISTERED):
        served = loading.served_files(options.model, options.root)
        copied = promotion.copied_otherwise(artifacts[-1], served)
        faults += copied
        console.print(f"{options.model}  {'CHANGED' if copied else 'unchanged'}", markup=False)
    if faults:
        raise DataError("\n".join(faults))
