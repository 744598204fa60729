"""`rungwise doctor [CONFIG]`: check versions, CPUs, memory, GPU, disk and server."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rungwise.commands.arguments import Commands, add_recipe, add_verb
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
    """One row of the table: what was checked, its value, and what to do about it."""

    what: str
    value: str
    state: Literal["ok", "look", "wrong"] = "ok"
    remedy: str = ""


def add(commands: Commands) -> None:
    parser = add_verb(commands, doctor, "check versions, CPUs, memory, GPU, disk and server")
    add_recipe(parser, nargs="?", help="check the root and server of this recipe")


def doctor(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if any of them would make a run fail."""
    findings = list(check_machine(options.config, options.overrides))
    wrong = sum(finding.state == "wrong" for finding in findings)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    marks = {"ok": "[green]ok[/]", "look": "[yellow]look[/]", "wrong": "[bold red]wrong[/]"}
    for finding in findings:
        # Text, because markup would swallow the extras in `ray[train]`.
        texts = (Text(redact(text)) for text in (finding.what, finding.value, finding.remedy))
        table.add_row(marks[finding.state], *texts)
    console = Console()
    print_table(table, console)
    console.print(f"\n{wrong} wrong" if wrong else "\nnothing wrong", highlight=False)
    return FAILED if wrong else OK


def check_machine(config: str | None, overrides: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings in the order of the table."""
    import psutil

    from rungwise.cluster.local import count_cores
    from rungwise.pipeline.places import default_places, root_folder, tracking_uri

    is_new, version = sys.version_info >= (3, 11), platform.python_version()
    yield _judge(is_new, "Python", version, "install Python 3.11 or newer, then remove .venv")
    yield from _check_packages()
    cores = count_cores()
    yield _judge(cores >= 2, "CPUs", str(cores), "set compute.num_workers=1", "look")
    gigabytes = psutil.virtual_memory().available / 2**30
    remedy = f"the quickstart may need {_MEMORY_GIB:.0f} GiB"
    value = f"{gigabytes:.1f} GiB available"
    yield _judge(gigabytes >= _MEMORY_GIB, "memory", value, remedy, "look")
    yield _check_gpu()
    root, uri = default_places()
    if config is not None:
        from rungwise.pipeline.workflow import load_recipe

        recipe = load_recipe(config, overrides)
        root = root_folder(recipe.root)
        uri = tracking_uri(recipe, root)
    yield _check_disk(root)
    yield _check_tracking(uri)
    address = os.environ.get("RAY_ADDRESS")
    local = "starts on this machine, protected by a token"
    yield Finding("Ray", f"joins {address} (RAY_ADDRESS)" if address else local)


def _judge(
    is_fine: bool, what: str, value: str, remedy: str, state: Literal["look", "wrong"] = "wrong"
) -> Finding:
    return Finding(what, value) if is_fine else Finding(what, value, state, remedy)


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
        if requirement.name in _MAIN_PACKAGES or not fits:
            yield _judge(fits, requirement.name, version, f"pip install '{requirement}'")


def _check_gpu() -> Finding:
    import importlib.metadata

    none = Finding("GPU", "none; training runs on CPUs")
    try:
        if importlib.metadata.version("torch").endswith("+cpu"):
            return none  # it takes seconds to import PyTorch, and this build knows no GPU
        import torch
    except ImportError as error:
        return Finding("GPU", f"not known: {error}", "look", "install PyTorch")

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    remedy = "set compute.gpus_per_worker=1 to use them"
    return Finding("GPU", ", ".join(names), remedy=remedy) if names else none


def _check_disk(root: Folder) -> Finding:
    if root.remote:
        try:
            root.check_writable("root")
        except UserError as error:
            return Finding("root", root.uri, "wrong", str(error))
        return Finding("root", root.uri)
    free = (root.free_bytes() or 0) / 2**30
    value = f"{root.uri}, {free:.1f} GiB free"
    if not os.access(root.existing(), os.W_OK):
        return Finding("root", value, "wrong", "not writable; set another root")
    remedy = f"less than {_DISK_GIB:.0f} GiB; free some space"
    return _judge(free >= _DISK_GIB, "root", value, remedy, "look")


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
        return Finding("MLflow", server, "wrong", str(error))
    except Exception as error:
        return Finding("MLflow", f"{server} does not answer ({error})", "wrong", remedy)
    return Finding("MLflow", f"{server} answers")
