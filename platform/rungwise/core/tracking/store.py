"""The MLflow server of a run: which it is, and a client of it that fails in one line."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.core.configuration.secrecy import without_password
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder

_SQLITE = b"SQLite format 3\0"  # how every database file begins


class TrackingConfig(Config):
    """The MLflow server and experiment. Changing it rebuilds nothing."""

    # null: MLFLOW_TRACKING_URI if it is set, else an SQLite file below `root`
    uri: str | None = None
    experiment: str = "rungwise"


def default_uri(root: Folder, environment_uri: str | None) -> str:
    """The tracking URI if the recipe has none."""
    if environment_uri:
        return environment_uri
    base = Path.cwd() if root.remote else Path(root.uri)
    return f"sqlite:///{base}/mlflow.db"


def artifact_location(uri: str) -> str | None:
    """The artifact folder beside an SQLite store; None for a server, which has its own."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()


def quieten_mlflow() -> None:
    """Hide log lines of MLflow and its migrations; errors are still raised. Call after importing
    MLflow, which configures its loggers on import."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def check_store(uri: str) -> None:
    """Refuse an SQLite store that is missing, which MLflow would create by asking it, or damaged,
    which MLflow would try for minutes to open. Raises UserError."""
    if (database := uri.removeprefix("sqlite:///")) == uri:
        return
    try:
        with open(database, "rb") as file:
            head = file.read(len(_SQLITE))
    except OSError as error:
        raise UserError(
            f"there is no MLflow store at {database} ({error.strerror}); the first run makes one. "
            "If there is one elsewhere, name it in MLFLOW_TRACKING_URI, or give the recipe or "
            "--root where the command takes it"
        ) from error
    if head != _SQLITE:
        raise UserError(f"{database} is not an SQLite database; mend or delete it")


@contextlib.contextmanager
def store_client(uri: str) -> Iterator[Any]:
    """Give a client of a store that exists. Raises UserError if there is none, or if MLflow refuses
    something in the block."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    quieten_mlflow()
    check_store(uri)
    try:
        yield MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        raise UserError(
            f"MLflow at {without_password(uri)}: {' '.join(error.message.split())}; another store "
            "can be named in MLFLOW_TRACKING_URI, or by --root where the command takes it"
        ) from error
