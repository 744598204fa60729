"""`rungwise up`: start a Ray cluster of several nodes on this machine (cluster/local/up.py)."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(commands, "up", up, "start a Ray cluster of several nodes on this machine")
    parser.add_argument("--nodes", type=int, default=2, metavar="N")
    parser.add_argument("--cpus", type=int, metavar="N", help="a node; else the cores are divided")
    parser.add_argument("--name", default="local", help="of the cluster, for several at once")
    parser.add_argument("--root", default="artifacts", help="of recipes and of MLflow's store")
    parser.add_argument("--port", type=int, help="of the job API and dashboard; else near 8265")
    parser.add_argument("--mlflow-port", type=int, metavar="PORT", help="else near 5000")
    parser.add_argument("--prometheus-port", type=int, metavar="PORT", help="else near 9090")


def up(options: argparse.Namespace) -> int:
    from rungwise.cluster.local.up import Wanted, up_command

    return up_command(
        Wanted(
            options.name,
            options.nodes,
            options.cpus,
            options.root,
            options.port,
            options.mlflow_port,
            options.prometheus_port,
        )
    )
