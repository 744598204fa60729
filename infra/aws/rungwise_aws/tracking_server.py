"""Run a cluster's MLflow server, with runs in PostgreSQL and files in the bucket.

libpq reads the password from a file at every new connection. It therefore appears neither in
arguments nor in variables, and a rotated password takes effect once the file is rewritten.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from rungwise.cluster.description import Database, Machine
from rungwise.core.errors import UserError
from rungwise_aws.secret_store import read_secret, write_private

PORT = 5000
RUNTIME_FOLDER = Path("/run/rungwise-mlflow")  # RuntimeDirectory= of the unit
_PASSWORD_FILE = "pgpass"
_AUTHORITIES = Path(sys.prefix) / "rds-ca.pem"  # RDS's, shipped in the package (infra/package.sh)
_WORKERS = 2


def become_server(machine: Machine, folder: Path = RUNTIME_FOLDER) -> None:
    """Fetch the password and replace this process with the server."""
    user = write_password(machine, folder)
    variables = server_environment(machine, folder / _PASSWORD_FILE)
    os.execve(sys.executable, server_command(machine, user), {**os.environ, **variables})


def write_password(machine: Machine, folder: Path = RUNTIME_FOLDER) -> str:
    """Write libpq's password file and return the user name. Raises UserError if the secret is
    malformed."""
    assert machine.database is not None
    user, password = _read_credentials(machine.database, machine.region)
    write_private(folder / _PASSWORD_FILE, format_password(machine.database, user, password))
    return user


def format_password(database: Database, user: str, password: str) -> str:
    """A line of libpq's password file, with colons and backslashes escaped.
    https://www.postgresql.org/docs/current/libpq-pgpass.html"""
    fields = (database.host, str(database.port), database.name, user, password)
    escaped = [field.replace("\\", "\\\\").replace(":", "\\:") for field in fields]
    return ":".join(escaped) + "\n"


def server_command(machine: Machine, user: str) -> list[str]:
    """The server's command. It listens on all addresses; the security group filters."""
    assert machine.database is not None
    assert machine.artifact_uri is not None
    database = machine.database
    place = f"{quote(user, safe='')}@{database.host}:{database.port}/{database.name}"
    arguments = [sys.executable, "-m", "mlflow", "server"]
    tls = urlencode({"sslmode": "verify-full", "sslrootcert": _AUTHORITIES}, safe="/")
    arguments += ["--backend-store-uri", f"postgresql+psycopg2://{place}?{tls}"]
    arguments += ["--artifacts-destination", f"{machine.artifact_uri.rstrip('/')}/mlflow"]
    arguments += ["--host", "0.0.0.0", "--port", str(PORT), "--workers", str(_WORKERS)]
    if machine.allowed_hosts:
        arguments += ["--allowed-hosts", ",".join(machine.allowed_hosts)]
    return arguments


def server_environment(machine: Machine, password_file: Path) -> Mapping[str, str]:
    """The server's environment: password file, no telemetry, no job runner."""
    return {
        "PGPASSFILE": str(password_file),
        "AWS_DEFAULT_REGION": machine.region,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _read_credentials(database: Database, region: str) -> tuple[str, str]:
    text = read_secret(database.secret, region)
    try:
        credentials = json.loads(text or "")
        return str(credentials["username"]), str(credentials["password"])
    except (ValueError, KeyError, TypeError):
        # Without the cause, whose message could contain the secret.
        raise UserError(
            f"the secret {database.secret} must hold JSON with username and password"
        ) from None
