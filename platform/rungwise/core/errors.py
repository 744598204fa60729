"""The exceptions that rungwise raises on purpose.

    Exception
    └── RungwiseError
        ├── UserError          the user can fix it: exit 2, one line, no traceback
        │   ├── ConfigError    a key or a value in the recipe
        │   └── DataError      a file, a document, an instance
        └── StageFailed        a stage raised something else: exit 1, the cause is chained

Bugs in rungwise are ordinary exceptions and keep their traceback. Those of disks and object stores
become a UserError of one line, with the config key to change. Last, numbers and lists in messages.
"""

import contextlib
import errno
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self


class RungwiseError(Exception):
    """Base class of every exception that rungwise raises on purpose."""


class UserError(RungwiseError):
    """An error that the user can fix: the message gives what was expected and what to change."""

    @classmethod
    def at(cls, place: str, expected: str, found: str, change: str = "") -> Self:
        """The error of one value: `PLACE: expected EXPECTED, found FOUND; CHANGE`."""
        remedy = f"; {change}" if change else ""
        return cls(f"{place}: expected {expected}, found {found}{remedy}")


class ConfigError(UserError):
    """A key or value of the configuration is wrong. The message ends with the changes to paste."""

    def __init__(self, message: str, changes: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message, self.changes = message, dict(changes or {})

    def __str__(self) -> str:
        changes = self.changes.items()
        overrides = [f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in changes]
        remedy = f"; set {shlex.join(overrides)}" if overrides else ""
        return f"{self.message}{remedy}"

    def rename_keys(self, rename: Callable[[str], str]) -> "ConfigError":
        """The same error with changes of other keys."""
        changes = {rename(key): value for key, value in self.changes.items()}
        return ConfigError(self.message, changes)


class BlockError(ValueError):
    """Keys of a block do not fit together: for validators. `changes` are keys of the block."""

    def __init__(self, message: str, changes: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.changes = changes


class DataError(UserError):
    """An input file, document, instance or shard is wrong."""


class StageFailed(RungwiseError):
    """A stage failed with an error that the user cannot fix; `__cause__` holds it."""


def to_text(error: UserError) -> str:
    """Serialise `error` as text that can be passed between processes; see `from_text`."""
    return json.dumps([type(error).__name__, str(error)])


def from_text(text: str) -> UserError:
    name, message = json.loads(text)
    return {"ConfigError": ConfigError, "DataError": DataError}.get(name, UserError)(message)


def find_user_error(error: BaseException) -> UserError | None:
    """Find the UserError inside `error`, which Ray wraps in several ways; None if there is none."""
    visited: set[int] = set()
    pending: list[Any] = [error]
    while pending:
        current = pending.pop()
        if not isinstance(current, BaseException) or id(current) in visited:
            continue
        visited.add(id(current))
        if isinstance(current, UserError):
            # Ray makes RayTaskError(DataError), a subclass of both, whose text is a traceback; the
            # original is its `cause`.
            original = getattr(current, "cause", None)
            user_error = original if isinstance(original, UserError) else current
            # Ray Data appends lines to the message; ours have one line.
            kind = DataError if isinstance(user_error, DataError) else UserError
            return kind(str(user_error).partition("\n")[0])
        for name in ("cause", "__cause__", "__context__", "training_failed_error"):
            pending.append(getattr(current, name, None))
        pending += (getattr(current, "worker_failures", None) or {}).values()
    return None


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


def format_count(number: int, noun: str) -> str:
    """Format `1 layer`, `2,000 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def list_first(names: Iterable[str], most: int, separator: str = ", ") -> str:
    """Format `a, b and 3 more`, with at most so many names."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more
