"""Read and write AWS Secrets Manager with the rights of the machine's role."""

import os
from pathlib import Path
from typing import Any

from rungwise.core.errors import UserError


def read_secret(arn: str, region: str) -> str | None:
    """The value of a secret, or None if it has none yet. Raises UserError if AWS refuses or does
    not answer."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return _client(region).get_secret_value(SecretId=arn)["SecretString"]
    except (BotoCoreError, ClientError) as error:
        # Also the answer for a secret that exists but has no value yet.
        if "ResourceNotFoundException" in str(error):
            return None
        raise UserError(f"cannot read the secret {arn}: {error}") from error


def put_secret(arn: str, region: str, value: str) -> None:
    """Set the secret's value. Raises UserError if AWS refuses or does not answer."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        _client(region).put_secret_value(SecretId=arn, SecretString=value)
    except (BotoCoreError, ClientError) as error:
        raise UserError(f"cannot write the secret {arn}: {error}") from error


def write_private(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Write a file that only its owner may read, atomically; `owner` is (uid, gid)."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        if owner is not None:
            os.fchown(stream.fileno(), *owner)
        stream.write(text)
    part.replace(path)


def _client(region: str) -> Any:
    import botocore.session
    from botocore.config import Config

    patience = Config(
        connect_timeout=5, read_timeout=20, retries={"mode": "standard", "max_attempts": 8}
    )
    return botocore.session.get_session().create_client(
        "secretsmanager", region_name=region, config=patience
    )
