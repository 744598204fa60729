"""The connection to a cluster's job server: its address, its token, and a client.
Ray's own client has no timeout and prefers RAY_ADDRESS to the address it is given."""

import contextlib
import ipaddress
import logging
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from rungwise.cluster import registry
from rungwise.cluster.ray_start import DASHBOARD_PORT
from rungwise.core.errors import UserError
from rungwise.core.storage.folder import local_path

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
_ADDRESS_VARIABLES = (ADDRESS_VARIABLE, "RAY_ADDRESS")
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_DEFAULT_TOKEN = Path(".ray", "auth_token")  # the last place where Ray looks, below the home
_LOGGERS = (
    "dashboard.modules.dashboard_sdk",
    "_private.runtime_env.packaging",
    "_private.runtime_env.working_dir",
)
# Timeouts for connecting, and between two pieces of a response.
_TIMEOUT_SECONDS = (10.0, 60.0)
_NOT_YET = "No available agent"
_START_SECONDS = 60.0
_TOKEN_HELP = (
    "put the cluster's token in a file and name the file in RAY_AUTH_TOKEN_PATH (the output "
    "`connect` of infra/terraform has the command that fetches it)"
)


class UnreachableError(UserError):
    """Nothing answers at the address, or the server stopped answering."""


@dataclass(frozen=True)
class Server:
    """A job server. `option`, quoted for a shell, makes a later command reach the same one."""

    address: str
    token: str | None = field(repr=False)
    token_from: str
    option: str = ""
    cluster: registry.RegisteredCluster | None = None  # one that `rungwise up` started here

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @property
    def exposes_token(self) -> bool:
        """Whether the token leaves this machine unencrypted."""
        parts = urlsplit(self.address)
        return (
            self.token is not None and parts.scheme == "http" and not _is_loopback(parts.hostname)
        )


class Client(JobSubmissionClient):
    """Ray's client of one server, with timeouts and with UserErrors for all errors."""

    def __init__(self, server: Server) -> None:
        self.server = server
        # Silences messages on uploads, which the pre-flight check has shown already.
        for name in _LOGGERS:
            logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)
        with _environment({**dict.fromkeys(_ADDRESS_VARIABLES), ADDRESS_VARIABLE: server.address}):
            super().__init__(server.address, headers=dict(server.headers))

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        try:
            return super()._do_request(method, endpoint, timeout=_TIMEOUT_SECONDS, **options)
        except AuthenticationError:
            server = self.server
            raise UserError(
                f"the cluster at {server.address} wants a token and none is set; {_TOKEN_HELP}"
                if server.token is None
                else f"the cluster at {server.address} refuses the token from {server.token_from}: "
                f"it is of another cluster, or the cluster was made anew; {_TOKEN_HELP}"
            ) from None
        except (requests.ConnectionError, requests.Timeout) as error:
            raise UnreachableError(_silence(self.server)) from error

    def _raise_error(self, r: requests.Response) -> NoReturn:
        last = (r.text.strip().splitlines() or ["nothing"])[-1]
        raise UserError(
            f"{self.server.address} answered {r.status_code}: {last}; the head's logs say more"
        )

    def submit_job(self, **job: Any) -> str:
        """Submit a job and return its id. Retries while a head that just started gets ready."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return super().submit_job(**job)
            except UserError as error:
                if _NOT_YET not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def get(self, route: str) -> dict[str, Any]:
        """The `data` of a dashboard route. Raises UserError if there is no such route."""
        response = self._do_request("GET", route)
        try:
            return response.json()["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.server.address}{route} answered {response.status_code} and no data; is the "
                "dashboard of this cluster whole (ray[default])?"
            ) from error

    def get_details(self, job: str) -> JobDetails:
        """The details of one job. Raises UserError if the cluster does not know the id,
        UnreachableError if it cannot answer."""
        response = self._do_request("GET", f"/api/jobs/{job}")
        if response.status_code == 404:
            raise UserError(
                f"the cluster at {self.server.address} does not know the job {job}; a head that "
                "starts anew forgets its jobs: submit it again, and it goes on from its checkpoints"
            )
        if response.status_code != 200:
            raise UnreachableError(
                f"{self.server.address} answered {response.status_code}; the head's logs say more"
            )
        return JobDetails(**response.json())

    def has_package(self, uri: str) -> bool:
        """Whether the cluster still holds an uploaded folder. The query makes it keep it longer."""
        return self._package_exists(uri)


def find_server(address: str | None, name: str | None) -> Server:
    """The server at `address`, of a cluster started here, or in the environment. Raises UserError
    if nothing names one, or its token cannot be read."""
    if address:
        url = _url(address, "--address")
        return _server(url, f" --address {shlex.quote(url)}")
    if name:
        cluster = registry.find(name)
        assert cluster is not None, "an unknown name is refused"
        return _server(cluster.job_address, f" --name {name}", cluster)
    for variable in _ADDRESS_VARIABLES:
        value = os.environ.get(variable, "")
        # Drivers have a RAY_ADDRESS too, but theirs is not a job server.
        if value and (variable == ADDRESS_VARIABLE or value.startswith(("http://", "https://"))):
            return _server(_url(value, variable))
    if cluster := registry.find(None):
        return _server(cluster.job_address, cluster=cluster)
    raise UserError(
        "which cluster? give --address http://HOST:8265 or set RAY_API_SERVER_ADDRESS (the output "
        "`connect` of infra/terraform has both), or start one here with: rungwise up"
    )


def connect(server: Server) -> Client:
    """Connect to the server. Raises UnreachableError if nothing answers, UserError if it is not a
    job server or refuses the token."""
    try:
        return Client(server)
    except UserError:
        raise
    except (RuntimeError, requests.RequestException, ValueError, KeyError) as error:
        raise UserError(
            f"what answers at {server.address} is not the job server of a Ray cluster; its port is "
            f"{DASHBOARD_PORT} unless set otherwise (6379 and 10001 are for other things)"
        ) from error


def _server(
    address: str, option: str = "", cluster: registry.RegisteredCluster | None = None
) -> Server:
    """The server with its token: that of a cluster started here, else from where Ray looks."""
    clusters = (each for each in registry.all_clusters() if each.job_address == address)
    cluster = cluster or next(clusters, None)
    value, path = (os.environ.get(variable) for variable in _TOKEN_VARIABLES)
    default = Path.home() / _DEFAULT_TOKEN
    token, source = None, ""
    if cluster is not None:
        token, source = _read_token(Path(cluster.token_path)), f"of the cluster {cluster.name}"
    elif value:
        token, source = value.strip(), "RAY_AUTH_TOKEN"
    elif path:
        token, source = _read_token(local_path(path)), f"RAY_AUTH_TOKEN_PATH ({path})"
    elif default.is_file():
        token, source = _read_token(default), str(default)
    return Server(address, token, source, option, cluster)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"cannot read the token at {path} ({why}); {_TOKEN_HELP}") from error
    if not token:
        raise UserError(f"the token at {path} is empty; {_TOKEN_HELP}")
    return token


def _silence(server: Server) -> str:
    if server.cluster is not None:
        return (
            f"the cluster {server.cluster.name} does not answer at {server.address}; start it "
            "again with: rungwise up"
        )
    if _is_loopback(urlsplit(server.address).hostname):
        return (
            f"nothing answers at {server.address}; start the port forwarding to the head and leave "
            "it open (the output `connect` of infra/terraform has the command), or a cluster here "
            "with: rungwise up"
        )
    return (
        f"nothing answers at {server.address}; is it the head's job server, whose port is "
        f"{DASHBOARD_PORT}, and can this machine reach it? Clusters of infra/terraform are reached "
        "by port forwarding only: see their output `connect`"
    )


def _url(address: str, source: str) -> str:
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise UserError(f"{source}: expected an address like http://HOST:8265, found {address!r}")
    return url.rstrip("/")


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _environment(values: dict[str, str | None]) -> Iterator[None]:
    """Set environment variables for the duration of the block; None unsets one."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
