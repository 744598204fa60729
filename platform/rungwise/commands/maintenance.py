"""`rungwise ui` and `rungwise sync`: look at the tracking store, and send it what it missed."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from rungwise.core.config import load
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import OK
from rungwise.core.storage import Folder
from rungwise.core.tracking import artifact_location, default_uri, sync, without_password
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import root_folder, spool_folder, tracking_uri

_DEFAULT_ROOT = "artifacts"


def serve_ui(config: str | None, overrides: Sequence[str], port: int) -> NoReturn:
    """Serve the MLflow UI of an SQLite store on loopback until Ctrl-C.

    Raises UserError if there is no such store, or the port is taken.
    """
    uri = _store(config, overrides)
    if not uri.startswith("sqlite:///"):
        raise UserError(
            f"the tracking store is a server: open {without_password(uri)} in a browser"
        )
    database = Path(uri.removeprefix("sqlite:///"))
    if not database.exists():
        raise UserError(f"there is no MLflow store at {database} yet; run a workflow first")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise UserError(f"port {port} is taken; choose another with --port")
    Console().print(f"MLflow on http://127.0.0.1:{port}  (Ctrl-C ends it)", highlight=False)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--artifacts-destination", str(artifact_location(uri))]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # The server takes this process's place, so that whatever ends the command ends the server.
    os.execve(sys.executable, command, {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"})


def sync_spool(config: str, overrides: Sequence[str]) -> int:
    """Send every spooled event of a recipe to its tracking server."""
    recipe = load(Recipe, config, overrides)
    root = root_folder(recipe.root)
    uri = tracking_uri(recipe, root)
    try:
        sent, left = sync(uri, recipe.tracking.experiment, spool_folder(root))
    except ConnectionError as error:
        raise UserError(f"{without_password(uri)} does not take the events: {error}") from error
    Console().print(f"{sent} spool files sent to {without_password(uri)}, {left} left")
    return OK


def _store(config: str | None, overrides: Sequence[str]) -> str:
    if config is not None:
        recipe = load(Recipe, config, overrides)
        return tracking_uri(recipe, root_folder(recipe.root))
    return default_uri(Folder.at(_DEFAULT_ROOT), os.environ.get("MLFLOW_TRACKING_URI"))
