"""The job server of a cluster: its address and token, and Ray's own client of it."""

import contextlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from rungwise.cluster import registry
from rungwise.cluster.ray_start import DASHBOARD_PORT
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import local_path

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
_DRIVER_VARIABLE = "RAY_ADDRESS"  # of drivers too, whose address is no job server's
_DEFAULT_TOKEN = Path(".ray", "auth_token")  # the last place where Ray looks, below the home


@dataclass(frozen=True)
class Server:
    """A job server, and the token to show it, if any."""

    address: str
    token: str | None = field(repr=False)
    token_path: Path | None  # None also if the token is in a variable

    def command(self, *arguments: str) -> str:
        """`ray job ARGUMENTS` for a shell, with the address and the token's file."""
        variables = []
        if self.token is not None:
            variables.append("RAY_AUTH_MODE=token")
        if self.token_path is not None:
            variables.append(f"RAY_AUTH_TOKEN_PATH={shlex.quote(str(self.token_path))}")
        verb, *rest = arguments
        return " ".join(
            [*variables, shlex.join(["ray", "job", verb, "--address", self.address, *rest])]
        )


def find_server(address: str | None, name: str | None) -> Server:
    """The server at `address`, of a cluster started here, or in the environment. Raises UserError
    if nothing names one, or its token cannot be read."""
    if address:
        return _make_server(_check_url(address, "--address"))
    if name is None:
        for variable in (ADDRESS_VARIABLE, _DRIVER_VARIABLE):
            value = os.environ.get(variable, "")
            if value.startswith("http") or (value and variable == ADDRESS_VARIABLE):
                return _make_server(_check_url(value, variable))
    if cluster := registry.find(name):
        return _make_server(cluster.job_address)
    raise UserError(
        "which cluster? give --address http://HOST:8265 or set RAY_API_SERVER_ADDRESS (after "
        "`kubectl port-forward service/rungwise-head-svc 8265` it is http://127.0.0.1:8265), or "
        "start one here with: rungwise up"
    )


def connect(server: Server) -> JobSubmissionClient:
    """Ray's client of the server. Raises UserError if nothing answers, what answers is no job
    server, or it refuses the token."""
    headers = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
    try:
        with _address_variable(server.address):
            return JobSubmissionClient(server.address, headers=headers)
    except AuthenticationError as error:
        raise UserError(
            f"the cluster at {server.address} wants a token, and "
            + ("none is set" if server.token is None else "refuses this one")
            + "; put the cluster's token in a file and name the file in RAY_AUTH_TOKEN_PATH"
        ) from error
    except (ConnectionError, requests.ConnectionError) as error:
        raise UserError(
            f"nothing answers at {server.address}; start it with `rungwise up`, or forward the "
            "port of a cluster on Kubernetes and leave it open: kubectl port-forward "
            f"service/rungwise-head-svc {urlsplit(server.address).port or DASHBOARD_PORT}:"
            f"{DASHBOARD_PORT}"
        ) from error
    except (RuntimeError, requests.RequestException, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"what answers at {server.address} is not the job server of a Ray cluster; its port is "
            f"{DASHBOARD_PORT} unless set otherwise (6379 and 10001 are for other things)"
        ) from error


@contextlib.contextmanager
def _address_variable(address: str) -> Iterator[None]:
    """Set the variable that Ray's client prefers to the address it is given."""
    before = os.environ.get(ADDRESS_VARIABLE)
    os.environ[ADDRESS_VARIABLE] = address
    try:
        yield
    finally:
        del os.environ[ADDRESS_VARIABLE]
        if before is not None:
            os.environ[ADDRESS_VARIABLE] = before


def _make_server(address: str) -> Server:
    """The server with the token of the cluster started here, or else from where Ray looks."""
    clusters = (each for each in registry.all_clusters() if each.job_address == address)
    default = Path.home() / _DEFAULT_TOKEN
    if cluster := next(clusters, None):
        path = Path(cluster.token_path)
    elif value := os.environ.get("RAY_AUTH_TOKEN"):
        return Server(address, value.strip(), None)
    elif value := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        path = local_path(value)
    elif default.is_file():
        path = default
    else:
        return Server(address, None, None)
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the token at {path} ({error}); name its file in RAY_AUTH_TOKEN_PATH"
        ) from error
    return Server(address, token, path)


def _check_url(address: str, source: str) -> str:
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UserError(f"{source}: expected an address like http://HOST:8265, found {address!r}")
    return url.rstrip("/")
