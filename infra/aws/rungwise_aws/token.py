"""The token of the Ray cluster: created on the head, kept in Secrets Manager, a file on each
machine. Terraform creates the secret empty, so that its state never holds the token."""

import logging
import pwd
import secrets
import time
from pathlib import Path

from rungwise.cluster.description import Machine
from rungwise.cluster.ray_start import TOKEN_BYTES
from rungwise.core.errors import UserError
from rungwise_aws.secret_store import put_secret, read_secret, write_private

_LOGGER = logging.getLogger(__name__)

TOKEN_FILE = Path("/etc/rungwise/token")
SERVICE_USER = "rungwise"
_POLL_SECONDS = 5.0
_POLLS_A_MESSAGE = 12


def provide_token(machine: Machine, path: Path = TOKEN_FILE, user: str = SERVICE_USER) -> None:
    """Wait for the cluster's token and write it to `path`, readable only by `user`."""
    polls = 0
    while not (token := _read_token(machine)):
        if polls % _POLLS_A_MESSAGE == 0:
            _LOGGER.info("waiting for the token, which the head makes")
        polls += 1
        time.sleep(_POLL_SECONDS)
    entry = pwd.getpwnam(user)
    write_private(path, token, (entry.pw_uid, entry.pw_gid))
    _LOGGER.info(f"the token of cluster {machine.cluster} is in {path}")


def _read_token(machine: Machine) -> str | None:
    assert machine.token_secret is not None
    try:
        token = read_secret(machine.token_secret, machine.region)
        if token is None and machine.role == "head":
            put_secret(machine.token_secret, machine.region, secrets.token_hex(TOKEN_BYTES))
            _LOGGER.info("a token was made")
            # Read it back, so that head and workers use the same stored value.
            token = read_secret(machine.token_secret, machine.region)
    except UserError as error:  # a new role takes a while to work everywhere
        _LOGGER.info("%s", error)
        return None
    return token
