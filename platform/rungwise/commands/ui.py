"""`rungwise ui [CONFIG]`: serve the MLflow UI of a recipe's store on loopback."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from rungwise.commands.arguments import Commands, add_recipe, add_verb
from rungwise.core.errors import UserError


def add(commands: Commands) -> None:
    parser = add_verb(commands, "ui", ui, "serve the MLflow UI of a recipe's store on loopback")
    add_recipe(parser, nargs="?")
    parser.add_argument("--port", type=int, default=5000)


def ui(options: argparse.Namespace) -> NoReturn:
    """Serve an SQLite store until Ctrl-C.

    Raises UserError if there is no such store, or the port is taken.
    """
    from rungwise.core.secrecy import without_password
    from rungwise.core.tracking import artifact_location
    from rungwise.pipeline.workflow import places

    _, uri = places(options.config, options.overrides)
    if not uri.startswith("sqlite:///"):
        raise UserError(
            f"the tracking store is a server: open {without_password(uri)} in a browser"
        )
    database = Path(uri.removeprefix("sqlite:///"))
    if not database.exists():
        raise UserError(f"there is no MLflow store at {database} yet; run a workflow first")
    port = options.port
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise UserError(f"port {port} is taken; choose another with --port")
    Console().print(f"MLflow on http://127.0.0.1:{port}  (Ctrl-C ends it)", highlight=False)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--artifacts-destination", str(artifact_location(uri))]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # The server takes this process's place, so that whatever ends the command ends the server.
    os.execve(sys.executable, command, {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"})
