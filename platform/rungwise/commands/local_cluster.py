"""`rungwise up|down`: a Ray cluster of several nodes on this machine (cluster/local/)."""

import argparse
from dataclasses import fields

from rungwise.commands.arguments import Commands, add_verb, port_number
from rungwise.core.console import plain_console
from rungwise.core.exit_codes import INTERRUPTED, OK

_PORTS = {
    "--port": "for job API and dashboard; default: near 8265",
    "--mlflow-port": "default: near 5000",
    "--prometheus-port": "default: near 9090",
    "--grafana-port": "default: near 3000",
}


def add(commands: Commands) -> None:
    parser = add_verb(commands, up, "start a Ray cluster of several nodes on this machine")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--cpus", type=int, metavar="N", help="per node; default: divide the cores")
    parser.add_argument("--name", default="local", help="name of the cluster, to run several")
    parser.add_argument("--root", default="artifacts", help="root of recipes and MLflow's store")
    for option, help_text in _PORTS.items():
        parser.add_argument(option, type=port_number, metavar="PORT", help=help_text)
    parser.add_argument(
        "--dashboards", action="store_true", help="require Prometheus; start Grafana if installed"
    )
    parser = add_verb(commands, down, "stop the cluster that `up` started, nothing else")
    parser.add_argument("--name", help="which cluster, if there are several")


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


def down(options: argparse.Namespace) -> None:
    from rungwise.cluster.local.down import stop_cluster

    stop_cluster(options.name, plain_console())
