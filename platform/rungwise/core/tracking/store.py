"""MLflow's store: its address, an SQLite database that is made whole, and a client of it."""

import contextlib
import logging
import os
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder

_SQLITE = b"SQLite format 3\0"  # how every database file begins
_QUOTED = {"%", "?"}  # what SQLAlchemy reads in the path of a database as an escape or a query
_ANOTHER = "name another store in MLFLOW_TRACKING_URI, or by --root where the command takes it"


class TrackingConfig(Config):
    """The MLflow server and experiment. Changing it rebuilds nothing."""

    # null: MLFLOW_TRACKING_URI if it is set, else an SQLite file below `root`
    uri: str | None = None
    experiment: str = "rungwise"


def default_uri(root: Folder, environment_uri: str | None) -> str:
    """The tracking URI if the recipe has none."""
    if environment_uri:
        return environment_uri
    return _sqlite_uri((Path.cwd() if root.remote else Path(root.uri)) / "mlflow.db")


def find_database(uri: str) -> Path | None:
    """The file of an SQLite store; None for a server."""
    if not uri.startswith("sqlite"):
        return None
    if not set(uri) & _QUOTED:
        return Path(uri.partition(":///")[2])
    from sqlalchemy import make_url

    return Path(make_url(uri).database or "")


def hide_credentials(uri: str) -> str:
    """The address of a server without credentials; the path of a file as it is."""
    return uri if find_database(uri) is not None else redact(uri)


def identify_file(uri: str) -> tuple[int, int] | None:
    """Identify the file of an SQLite store; None if there is none, and for a server."""
    if (database := find_database(uri)) is None or not database.exists():
        return None
    state = database.stat()
    return state.st_dev, state.st_ino


def _sqlite_uri(database: Path) -> str:
    if not set(str(database)) & _QUOTED:
        return f"sqlite:///{database}"
    from sqlalchemy import URL

    # With the bare name of the dialect, MLflow makes a folder of the quoted name as well.
    return URL.create("sqlite+pysqlite", database=str(database)).render_as_string()


def artifact_location(uri: str) -> str | None:
    """The artifact folder beside an SQLite store; None for a server, which has its own."""
    database = find_database(uri)
    return None if database is None else (database.absolute().parent / "mlartifacts").as_uri()


def quieten_mlflow() -> None:
    """Hide log lines of MLflow. Call after importing it, which configures its loggers."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def make_store(uri: str) -> None:
    """Make the SQLite store if there is none, aside, and link it to its name, so that a kill leaves
    a whole store or none. Does nothing for a server."""
    database = find_database(uri)
    if database is None or database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    aside = database.with_name(f".{database.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        _connect(_sqlite_uri(aside))
        with contextlib.suppress(FileExistsError):
            os.link(aside, database)
    finally:
        aside.unlink(missing_ok=True)


def open_store(uri: str) -> Any:
    """A client of a store that exists. Raises UserError if there is none or it does not open."""
    if (database := find_database(uri)) is None:
        return _connect(uri)
    try:
        with database.open("rb") as file:
            if file.read(len(_SQLITE)) != _SQLITE:  # MLflow would try for minutes
                raise UserError(f"{database} is not an SQLite database; mend or delete it")
    except OSError as error:
        raise UserError(
            f"there is no MLflow store at {database} ({error.strerror}); the first run makes one, "
            f"or {_ANOTHER}"
        ) from error
    try:
        return _connect(uri)
    except Exception as error:
        reason = " ".join(str(error).partition("\n")[0].split())
        raise UserError(
            f"MLflow cannot open its database {database} ({reason}); if no other process holds it, "
            f"try `mlflow db upgrade {shlex.quote(uri)}`, or move it away: the next run makes one"
        ) from error


@contextlib.contextmanager
def store_client(uri: str) -> Iterator[Any]:
    """Give a client of a store. Raises UserError as `open_store`, or if MLflow refuses a call."""
    from mlflow.exceptions import MlflowException

    try:
        yield open_store(uri)
    except MlflowException as error:
        message = " ".join(error.message.split())
        raise UserError(f"MLflow at {hide_credentials(uri)}: {message}; {_ANOTHER}") from error


def _connect(uri: str) -> Any:
    """A client of a store that has answered."""
    from mlflow import MlflowClient

    quieten_mlflow()
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)
    return client
