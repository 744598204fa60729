"""The pre-flight check: everything that is checked and shown before anything is uploaded."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import ray
from packaging.version import Version
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from rungwise.core.configuration.secrecy import redact
from rungwise.core.console import plain_console
from rungwise.core.errors import UserError
from rungwise.core.plural import counted
from rungwise.core.storage.object_store import is_remote
from rungwise.pipeline.recipe import Recipe
from rungwise.submission import local, probe, resources
from rungwise.submission.connection import Client, Server, connect
from rungwise.submission.packing import MOST_BYTES, check_upload


@dataclass
class Report:
    """The rows of a table, and notes below it."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        self.rows.append((name, value))

    def show(self) -> None:
        console = plain_console()
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in self.rows:
            table.add_row(name, Text(redact(value)))
        console.print(table, soft_wrap=False)
        for note in self.notes:
            console.print(f"note: {redact(note)}", style="yellow")


def check_job(job: local.Job, server: Server, any_version: bool) -> tuple[Client, Report]:
    """Check a job and the cluster; return a client of the cluster and the report. Raises UserError
    at the first fault, checking this machine first. Uploads nothing."""
    report = Report()
    stages = local.count_stages(job, report.notes)
    report.add("command", job.entrypoint)
    upload = check_upload(job.folder)
    absolute = local.check_paths(job, upload)
    report.add(
        "upload",
        f"{counted(len(upload.sizes), 'file')} of {job.folder}, {decimal(upload.size_bytes)} "
        f"(less than {decimal(MOST_BYTES)} can go)"
        + (", and the installed rungwise" if job.needs_package else ""),
    )
    report.add("largest", "\n".join(upload.largest))
    client = connect(server)
    head = cache(lambda: probe.query_head(client))  # takes seconds, and is not always necessary
    _check_versions(client, report, any_version)
    machines = _check_resources(client, job.recipe, stages, head, report)
    several = sum(group.present + group.more for group in machines) > 1
    _check_root(job.recipe, server, several, head, report)
    if absolute and server.cluster is None:
        report.notes.append(f"every machine must have {', '.join(absolute)} at the same place")
    if server.exposes_token:
        report.notes.append(
            f"the token goes to {server.address} unencrypted; port forwarding to loopback keeps it "
            "safe"
        )
    return client, report


def _check_versions(client: Client, report: Report, any_version: bool) -> None:
    metadata = client.get("/api/v0/cluster_metadata")
    remote = {"Ray": str(metadata["rayVersion"]), "Python": str(metadata["pythonVersion"])}
    local = {"Ray": ray.__version__, "Python": platform.python_version()}
    where = f", token {client.server.token_from}" if client.server.token else ", no token"
    report.add(
        "cluster",
        client.server.address + where + "".join(f", {name} {remote[name]}" for name in remote),
    )
    remedies = {
        "Ray": f"pip install 'ray[default,train,data,tune]=={remote['Ray']}'",
        "Python": f"make the environment with Python {_minor(remote['Python'])}",
    }
    for name, version in remote.items():
        if version == local[name]:
            continue
        difference = f"{name} is {version} on the cluster and {local[name]} here"
        if _minor(version) != _minor(local[name]) and not any_version:
            raise UserError(
                f"{difference}; {remedies[name]} here, or, if the workflow is known to run with "
                "the cluster's, give --ignore-versions"
            )
        report.notes.append(difference)


def _check_resources(
    client: Client,
    recipe: Recipe,
    stages: Mapping[str, int],
    head: Callable[[], probe.Head],
    report: Report,
) -> list[resources.MachineGroup]:
    nodes = client.get("/api/v0/nodes?detail=1")["result"]["result"]
    machines = resources.list_machines(nodes, None)
    demands = resources.list_demands(recipe.compute, stages)
    if any(resources.count_room(demand, machines).now < demand.count for demand in demands):
        machines = resources.list_machines(nodes, head().scaling)
    for demand in demands:
        room = resources.check_room(demand, machines)
        what = demand.what + (f", {demand.count} times" if demand.count > 1 else "")
        report.add("needs", f"{what}, {resources.in_words(demand.resources)} each")
        if room.at_most < demand.count:
            report.notes.append(
                f"there will be room for {room.at_most} of {demand.count} times {demand.what}"
            )
        elif room.now < demand.count:
            report.notes.append(
                f"there is room for {room.now} of {demand.count} times {demand.what}; the "
                "autoscaler adds machines, which takes minutes"
            )
    report.add("machines", resources.total(machines))
    offers = [offer for demand in demands for offer in resources.list_prices(demand, machines)]
    if recipe.compute.price_per_hour is not None:
        report.add("price", f"{recipe.compute.price_per_hour:,.2f} an hour, as the recipe says")
    elif offers:
        group, count, price = max(offers, key=lambda offer: offer[2])
        report.add(
            "price", f"about {price:,.2f} $ an hour for {count} of {group}, besides the head"
        )
    return machines


def _check_root(
    recipe: Recipe, server: Server, several: bool, head: Callable[[], probe.Head], report: Report
) -> None:
    """Report where artifacts will go. Raises UserError if some machines cannot reach the place."""
    if is_remote(recipe.root):
        report.add("artifacts", recipe.root)
        return
    if recipe.root.startswith(("/", "~")):
        report.add("artifacts", f"{recipe.root} on the cluster")
        if several and server.cluster is None:
            report.notes.append(
                f"root: {recipe.root} must be one folder that all machines share; else give s3://"
            )
        return
    base = head().root if several and server.cluster is None else None
    if server.cluster is not None:
        base = server.cluster.root
    if base is not None:
        report.add("artifacts", f"{base.rstrip('/')}/{recipe.root}")
    elif several:
        raise UserError(
            f"root: {recipe.root} is relative, and the machines of this cluster would each keep a "
            "part of the artifacts; give root=s3://BUCKET/PREFIX or an absolute path that all of "
            "them share (a cluster of infra/terraform names such a place in RUNGWISE_ROOT)"
        )
    else:
        report.add(
            "artifacts", f"~/rungwise/{recipe.root} on the head, unless RUNGWISE_ROOT is set"
        )


def _minor(version: str) -> str:
    return "{0.major}.{0.minor}".format(Version(version))
