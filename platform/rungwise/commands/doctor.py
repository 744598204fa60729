"""`rungwise doctor [CONFIG]`: check versions, CPUs, memory, GPU, disk and server."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rungwise.commands.parser import Commands, add_recipe, add_verb
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import FAILED, OK, print_table

if TYPE_CHECKING:
    from rungwise.core.storage.folder import Folder

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


def add(commands: Commands) -> None:
    parser = add_verb(commands, doctor, "check versions, CPUs, memory, GPU, disk and server")
    add_recipe(parser, nargs="?", help="check the root and server of this recipe")


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
