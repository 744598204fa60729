"""`rungwise verify MODEL`: hash every file that a model depends on, and list those that changed."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_artifact, add_verb, find_artifact


def add(commands: Commands) -> None:
    parser = add_verb(commands, verify, "check that no file behind a model has changed")
    add_artifact(parser)


def verify(options: argparse.Namespace) -> None:
    """Print a line per artifact, inputs first, and one for the registry's copy. Raises DataError
    that names each changed file."""
    from rungwise.core.console import plain_console
    from rungwise.core.errors import DataError
    from rungwise.core.stages.artifact import chain
    from rungwise.pipeline import loading
    from rungwise.serving import promotion

    say = plain_console().print
    faults: list[str] = []
    artifacts = chain(find_artifact(options))
    for artifact in artifacts:
        files = artifact.record["files"].values()
        try:
            artifact.verify()
            state = "unchanged"
        except DataError as error:
            faults.append(str(error))
            state = "CHANGED"
        megabytes = sum(file["bytes"] for file in files) / 1e6
        say(
            f"{artifact.stage:<12} {artifact.fingerprint}  {len(files):>5,} files "
            f"{megabytes:>10,.1f} MB  {state}"
        )
    if options.model.startswith(loading.REGISTERED):
        served = loading.served_files(options.model, options.root)
        changes = promotion.find_changed_copies(artifacts[-1], served)
        faults += changes
        say(f"{options.model}  {'CHANGED' if changes else 'unchanged'}")
    if faults:
        raise DataError("\n".join(faults))
