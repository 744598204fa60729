"""Report errors of disks and object stores in one line, with the config key to change."""

import contextlib
import errno
import sys
from collections.abc import Iterator

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
        place = uri.partition("://")[2].partition("/")[0]
        host = place.rpartition("@")[2]  # the part before @ could be a password
        change = f"or change {key} (now {uri})"
        if message := _store_message(error).replace(place, host):
            raise UserError(
                f"cannot use bucket {host} ({message}); check AWS_ENDPOINT_URL, the "
                f"credentials and the network, {change}"
            ) from error
        if message := _server_message(error):
            raise UserError(
                f"{host} does not give the file ({message}); check the address, whom it lets in, "
                f"and the network, {change}"
            ) from error
        raise


def _store_message(error: Exception) -> str:
    """An S3 error's message in one line; empty for other errors and for a missing object."""
    # Importing botocore is slow, and if it was never imported it cannot have raised the error.
    botocore = sys.modules.get("botocore.exceptions")
    if botocore is None:
        return ""
    s3_errors = (botocore.BotoCoreError, botocore.ClientError)
    cause = next((e for e in (error, error.__cause__) if isinstance(e, s3_errors)), None)
    if cause is None:
        return ""
    code = getattr(cause, "response", {}).get("Error", {}).get("Code")
    if code == "NoSuchBucket":
        return "there is no such bucket"
    return "" if isinstance(error, FileNotFoundError) else " ".join(str(cause).split())


def _server_message(error: Exception) -> str:
    """An error of HTTP in a few words, without the address; empty for other errors."""
    aiohttp = sys.modules.get("aiohttp")
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if aiohttp is None or not isinstance(error, aiohttp.ClientError):
        return ""
    status = getattr(error, "status", None)  # of an answer
    return type(error).__name__ if status is None else f"{status} {getattr(error, 'message', '')}"


def is_conflict(error: OSError) -> bool:
    """Whether a conditional put failed: the object exists, or another put was in progress."""
    answer = getattr(error.__cause__, "response", {}).get("ResponseMetadata", {})
    return answer.get("HTTPStatusCode") in (409, 412)
