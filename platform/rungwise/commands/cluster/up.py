"""`rungwise up`: start a Ray cluster of several nodes on this machine (cluster/local/up.py)."""

from __future__ import annotations

import argparse
from dataclasses import fields

from rungwise.commands.arguments import Commands, add_verb, port_number
from rungwise.core.console import plain_console
from rungwise.core.exit_codes import INTERRUPTED, OK


def add(commands: Commands) -> None:
    parser = add_verb(commands, up, "start a Ray cluster of several nodes on this machine")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--cpus", type=int, metavar="N", help="per node; default: divide the cores")
    parser.add_argument("--name", default="local", help="name of the cluster, to run several")
    parser.add_argument("--root", default="artifacts", help="root of recipes and MLflow's store")
    parser.add_argument(
        "--port", type=port_number, help="for job API and dashboard; default: near 8265"
    )
    parser.add_argument(
        "--mlflow-port", type=port_number, metavar="PORT", help="default: near 5000"
    )
    parser.add_argument(
        "--prometheus-port", type=port_number, metavar="PORT", help="default: near 9090"
    )
    parser.add_argument(
        "--dashboards", action="store_true", help="require Prometheus; start Grafana if installed"
    )
    parser.add_argument(
        "--grafana-port", type=port_number, metavar="PORT", help="default: near 3000"
    )


def up(options: argparse.Namespace) -> int:
    """Start the cluster, or say that it runs already."""
    from rungwise.cluster.local.up import Settings, describe_cluster, start_cluster

    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    console = plain_console()
    try:
        console.print(describe_cluster(start_cluster(settings, console)))
    except KeyboardInterrupt:
        console.print("interrupted; everything that had started was stopped")
        return INTERRUPTED
    return OK
