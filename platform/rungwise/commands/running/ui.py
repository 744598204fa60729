"""`rungwise ui [CONFIG]`: serve the MLflow UI on loopback."""

import argparse
import contextlib
import os
import socket
import sqlite3
import sys
from pathlib import Path
from typing import NoReturn

from rungwise.commands.arguments import Commands, add_recipe, add_verb, find_places, port_number
from rungwise.core.console import plain_console
from rungwise.core.errors import UserError


def add(commands: Commands) -> None:
    parser = add_verb(commands, ui, "serve the MLflow UI on loopback")
    add_recipe(parser, nargs="?")
    parser.add_argument("--port", type=port_number, default=5000, help="default: 5000")


def ui(options: argparse.Namespace) -> NoReturn:
    """Serve an SQLite store until Ctrl-C. Raises UserError if it is missing or the port taken."""
    from rungwise.core.tracking.store import (
        TrackingConfig,
        artifact_location,
        check_store,
        find_database,
        shown_address,
    )

    tracking = TrackingConfig()
    if options.config:
        from rungwise.pipeline.workflow import load_recipe

        tracking = load_recipe(options.config, options.overrides).tracking
    _, uri = find_places(options.config, options.overrides)
    if (database := find_database(uri)) is None:
        raise UserError(f"the tracking store is a server: open {shown_address(uri)} in a browser")
    check_store(uri)
    port = options.port
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise UserError(f"port {port} is taken; choose another with --port")
    page = f"http://127.0.0.1:{port}{_find_runs(database, tracking.experiment)}"
    plain_console().print(f"MLflow on {page}  (Ctrl-C stops it)")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--artifacts-destination", str(artifact_location(uri))]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # The server replaces this process, so that ending the command ends the server. MLflow's
    # background jobs serve only language models behind an API, and start eight processes.
    os.execve(
        sys.executable, command, {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    )


def _find_runs(database: Path, experiment: str) -> str:
    """The path of an experiment's runs; the UI's start page does not show training runs."""
    uri = f"{database.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as store:
        query = "SELECT experiment_id FROM experiments WHERE name = ?"
        row = store.execute(query, (experiment,)).fetchone()
    return f"/#/experiments/{row[0]}/runs?workflowType=machine_learning" if row else ""
