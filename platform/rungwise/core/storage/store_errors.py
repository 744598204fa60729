"""Report errors of disks and object stores in one line, with the config key to change."""

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import Any

from rungwise.core.errors import UserError

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)


@contextlib.contextmanager
def explain_store_errors(uri: str) -> Iterator[None]:
    """Turn a full disk, a refused write or an unreachable store into a UserError."""
    with disk_explained(uri), explain_connection_errors(uri):
        yield


@contextlib.contextmanager
def disk_explained(place: str, what: str = "root", remedy: str = "") -> Iterator[None]:
    """Turn a full disk or a refused write into a UserError: free space, `remedy`, or choose another
    `what`."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_IS_FULL:
            raise UserError(
                f"no room left on the disk of {place}; free some space, {remedy}or choose another "
                f"{what}"
            ) from error
        if error.errno in NOT_WRITABLE:
            raise UserError(
                f"cannot write to {place} ({error.strerror}); choose another {what}"
            ) from error
        raise


@contextlib.contextmanager
def explain_connection_errors(uri: str, key: str = "root") -> Iterator[None]:
    """Turn an error of S3 or of a server of files, or a timeout, into a UserError that names the
    config key `key`. A missing file stays a FileNotFoundError; other errors pass unchanged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not (fault := _describe_fault(error)):
            raise
        place = uri.partition("://")[2].partition("/")[0]
        host = place.rpartition("@")[2]  # the part before @ could be a password
        raise UserError(
            f"cannot use {host} ({fault.replace(place, host)}); check the address (of S3: "
            f"AWS_ENDPOINT_URL), the credentials and the network, or change {key} (now {uri})"
        ) from error


def _describe_fault(error: Any) -> str:
    """The fault of a store or a server in one line, without the address; empty for other errors and
    for a missing object."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    # Importing these is slow, and one that was never imported cannot have raised the error.
    botocore, aiohttp = map(sys.modules.get, ("botocore.exceptions", "aiohttp"))
    if aiohttp and isinstance(error, aiohttp.ClientResponseError):
        return f"{error.status} {error.message}"
    if aiohttp and isinstance(error, aiohttp.ClientError):
        return type(error).__name__
    of_s3 = (botocore.BotoCoreError, botocore.ClientError) if botocore else ()
    cause = next((each for each in (error, error.__cause__) if isinstance(each, of_s3)), None)
    is_missing = isinstance(error, FileNotFoundError) and "(NoSuchBucket)" not in str(cause)
    return "" if cause is None or is_missing else " ".join(str(cause).split())


def is_conflict(error: OSError) -> bool:
    """Whether a conditional put failed: the object exists, or another put was in progress."""
    answer = getattr(error.__cause__, "response", {}).get("ResponseMetadata", {})
    return answer.get("HTTPStatusCode") in (409, 412)
