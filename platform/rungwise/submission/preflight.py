"""The pre-flight check: everything that is checked and shown before anything is uploaded."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import ray
from packaging.version import Version
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from rungwise.core.errors import UserError
from rungwise.core.plural import counted
from rungwise.core.storage.object_store import is_remote
from rungwise.pipeline.recipe import Recipe
from rungwise.submission import local, probe, resources, upload
from rungwise.submission.connection import Client, Server, connect
from rungwise.submission.packing import MOST_BYTES


@dataclass
class Report:
    """The rows of a table, and notes below it."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, name: str, value: str) -> None:
        self.rows.append((name, value))

    def show(self, console: Console) -> None:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in self.rows:
            table.add_row(name, Text(value))
        console.print(table)
        for note in self.notes:
            console.print(
                f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True
            )


Ask = Callable[[], probe.Head]


def examine(job: local.Job, at: Server, any_version: bool) -> tuple[Client, Report]:
    """Check a job and the cluster; return a client of the cluster and the report. Raises UserError
    at the first fault, checking this machine first. Uploads nothing."""
    report = Report()
    stages = local.stages(job, report.notes)
    report.row("command", job.entrypoint)
    going = upload.examine(job.folder)
    apart = local.check_paths(job, going)
    report.row(
        "upload",
        f"{counted(len(going.files), 'file')} of {job.folder}, {decimal(going.size_bytes)} "
        f"(less than {decimal(MOST_BYTES)} can go)",
    )
    report.row("largest", "\n".join(going.largest))
    client = connect(at)
    head = cache(lambda: probe.ask(client))  # takes seconds, and is not always necessary
    _versions(client, report, any_version)
    machines = _resources(client, job.recipe, stages, head, report)
    several = sum(group.present + group.more for group in machines) > 1
    _root(job.recipe, at, several, head, report)
    if apart and at.known is None:
        report.notes.append(f"every machine must have {', '.join(apart)} at the same place")
    if at.in_the_clear:
        report.notes.append(
            f"the token goes to {at.address} unencrypted; port forwarding to loopback keeps it safe"
        )
    return client, report


def _versions(client: Client, report: Report, any_version: bool) -> None:
    metadata = client.get("/api/v0/cluster_metadata")
    theirs = {"Ray": str(metadata["rayVersion"]), "Python": str(metadata["pythonVersion"])}
    ours = {"Ray": ray.__version__, "Python": platform.python_version()}
    where = f", token {client.server.token_from}" if client.server.token else ", no token"
    report.row(
        "cluster",
        client.server.address + where + "".join(f", {name} {theirs[name]}" for name in theirs),
    )
    remedies = {
        "Ray": f"pip install 'ray[default,train,data,tune]=={theirs['Ray']}'",
        "Python": f"make the environment with Python {_minor(theirs['Python'])}",
    }
    for name, version in theirs.items():
        if version == ours[name]:
            continue
        differ = f"{name} is {version} on the cluster and {ours[name]} here"
        if _minor(version) != _minor(ours[name]) and not any_version:
            raise UserError(
                f"{differ}; {remedies[name]} here, or, if the workflow is known to run with the "
                "cluster's, give --ignore-versions"
            )
        report.notes.append(differ)


def _resources(
    client: Client, recipe: Recipe, stages: Mapping[str, int], head: Ask, report: Report
) -> list[resources.MachineGroup]:
    nodes = client.get("/api/v0/nodes?detail=1")["result"]["result"]
    machines = resources.machines(nodes, None)
    demands = resources.demands(recipe.compute, stages)
    if any(resources.room(demand, machines).now < demand.wanted for demand in demands):
        machines = resources.machines(nodes, head().scaling)
    for demand in demands:
        room = resources.check(demand, machines)
        what = demand.what + (f", {demand.wanted} times" if demand.wanted > 1 else "")
        report.row("asked", f"{what}, {resources.shown(demand.resources)} each")
        if room.at_most < demand.wanted:
            report.notes.append(
                f"there will be room for {room.at_most} of {demand.wanted} times {demand.what}"
            )
        elif room.now < demand.wanted:
            report.notes.append(
                f"there is room for {room.now} of {demand.wanted} times {demand.what}; the "
                "autoscaler adds machines, which takes minutes"
            )
    report.row("there", resources.total(machines))
    _price(recipe, demands, machines, report)
    return machines


def _price(
    recipe: Recipe,
    demands: list[resources.Demand],
    machines: list[resources.MachineGroup],
    report: Report,
) -> None:
    if recipe.compute.price_per_hour is not None:
        report.row("price", f"{recipe.compute.price_per_hour:,.2f} an hour, as the recipe says")
        return
    offers = [offer for demand in demands for offer in resources.prices(demand, machines)]
    if offers:
        group, count, price = max(offers, key=lambda offer: offer[2])
        report.row(
            "price", f"about {price:,.2f} $ an hour for {count} of {group}, besides the head"
        )


def _root(recipe: Recipe, at: Server, several: bool, head: Ask, report: Report) -> None:
    """Report where artifacts will go. Raises UserError if some machines cannot reach the place."""
    if is_remote(recipe.root):
        report.row("artifacts", recipe.root)
        return
    if recipe.root.startswith(("/", "~")):
        report.row("artifacts", f"{recipe.root} on the cluster")
        if several and at.known is None:
            report.notes.append(
                f"root: {recipe.root} must be one folder that all machines share; else give s3://"
            )
        return
    base = at.known.root if at.known is not None else (head().root if several else None)
    if base is not None:
        report.row("artifacts", f"{base.rstrip('/')}/{recipe.root}")
    elif several:
        raise UserError(
            f"root: {recipe.root} is relative, and the machines of this cluster would each keep a "
            "part of the artifacts; give root=s3://BUCKET/PREFIX or an absolute path that all of "
            "them share (a cluster of infra/terraform names such a place in RUNGWISE_ROOT)"
        )
    else:
        report.row(
            "artifacts", f"~/rungwise/{recipe.root} on the head, unless RUNGWISE_ROOT is set"
        )


def _minor(version: str) -> Any:
    parsed = Version(version)
    return f"{parsed.major}.{parsed.minor}"
