"""Files of the Hugging Face hub: hf://datasets/ORG/NAME@REVISION/PATH, and hf://ORG/NAME of models.

A branch is replaced by its commit when a recipe is read. Files are copied to a cache of this
machine (HF_HOME/hub/rungwise) and checked against the listing of the commit; nothing that a server
sends names a file unless it is hexadecimal, and all it sends is bounded in bytes and time.

    listings/COMMIT.json    size and digest of each file
    COMMIT/PATH             a file
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fsspec.archive import AbstractArchiveFileSystem

from rungwise.core.errors import DISK_IS_FULL, ConfigError, DataError, UserError

if TYPE_CHECKING:
    from httpx2 import Request, Response
    from huggingface_hub import HfUri

T = TypeVar("T")

SCHEME = "hf://"
_CHECK = "check HF_ENDPOINT"
_UNREACHABLE = (
    "the hub cannot be reached, and the cache of this machine lacks it; check the network, "
    "HF_ENDPOINT and HF_HUB_OFFLINE"
)
_MOST_ENTRIES = 2_000_000  # of a listing
_MOST_ANSWER_BYTES = 64 << 20  # of an answer that is no file
_SILENCE_SECONDS = 30.0
_PATIENCE_SECONDS = 600.0
_SLOWEST_BYTES_PER_SECOND = 10_000
_LOOK_SECONDS = 1.0
_STATUSES_OF_FILES = (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT)
_COMMIT = re.compile("[0-9a-f]{40}")
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
# Only these keys of a recipe hold addresses; elsewhere, as in a licence, hf:// is text like any.
_ADDRESS_KEYS = frozenset({"path", "paths", "train", "validation", "test", "initial"})


class _File(NamedTuple):
    """A file as the listing of a commit has it."""

    size: int
    digest: str


def is_hub(uri: str) -> bool:
    return uri.startswith(SCHEME)


def pin_all(value: Any) -> Any:
    """Pin every address of the hub in a recipe, those of one repository to the same commit.
    Raises ConfigError, naming the dotted key, where `pin` raises."""
    commits: dict[tuple[str, str, str | None], str] = {}

    def pin_below(item: Any, path: tuple[Any, ...], name: Any) -> Any:
        if isinstance(item, dict):
            return {below: pin_below(child, (*path, below), below) for below, child in item.items()}
        if isinstance(item, list | tuple):
            return [pin_below(child, (*path, i), name) for i, child in enumerate(item)]
        if isinstance(item, str) and is_hub(item) and str(name).split(".")[-1] in _ADDRESS_KEYS:
            try:
                return pin(item, commits)
            except UserError as error:
                raise ConfigError(f"{'.'.join(map(str, path))}: {error}") from error
        return item

    return pin_below(value, (), "")


def pin(uri: str, commits: dict[tuple[str, str, str | None], str] | None = None) -> str:
    """Replace the revision of an address, by default the main branch, by its commit. Without
    network this is the commit that was read last. `commits` holds commits that were asked for.
    Raises UserError if there is no such repository or revision."""
    from huggingface_hub import HfApi

    commits = {} if commits is None else commits
    with _explain_errors(uri):
        place = _parse(uri)
        key = (place.type, place.id, place.revision)
        if key not in commits:
            where = {"revision": place.revision, "repo_type": place.type}
            revision = fetch(uri, lambda: HfApi().resolve_revision(place.id, **where))
            if not _COMMIT.fullmatch(revision.resolved):
                found = f"{revision.resolved!r:.60}"
                raise UserError.at(uri, "a commit of 40 hexadecimal digits", found, _CHECK)
            commits[key] = revision.resolved
        kind = "" if place.type == "model" else f"{place.type}s/"
        return f"{SCHEME}{kind}{place.id}@{commits[key]}/{place.path_in_repo}".rstrip("/")


def local_copy(uri: str) -> Path:
    """The file in the cache of this machine, fetched if need be. Raises UserError if it cannot,
    DataError if what came is not what the listing says."""
    with _explain_errors(uri):
        place = _parse(pin(uri))
        file = _list_files(place).get(place.path_in_repo)
        if file is None:
            raise UserError(f"{uri}: the repository has no such file")
        copy = _cache() / str(place.revision) / place.path_in_repo
        if not copy.exists():
            _fetch(place, file, copy)
        return copy


def _fetch(place: HfUri, file: _File, target: Path) -> None:
    """Download a file to `target`. Raises DataError if it has not the size and digest listed."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(place.id, place.path_in_repo, repo_type=place.type, revision=place.revision)
    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled(url)
    with _stage_file(target) as aside:
        if file.size > (free := shutil.disk_usage(aside.parent).free):
            raise UserError(
                f"{url}: no room for its {file.size:,} bytes in {aside.parent}: {free:,} are free"
            )
        with aside.open("w+b") as stream:
            headers = build_hf_headers()
            get = functools.partial(http_get, headers=headers, expected_size=file.size)
            fetch(url, lambda: get(url, stream), file.size)
        # SHA-256 for LFS, and Git's own for other files.
        start = hashlib.sha1(b"blob %d\0" % file.size)
        with aside.open("rb") as stream:
            kind = hashlib.sha256 if len(file.digest) == 64 else start.copy
            digest = hashlib.file_digest(stream, kind).hexdigest()
        if digest != file.digest:
            expected = f"content with the digest {file.digest}"
            raise DataError.at(url, expected, digest, f"try again, or {_CHECK}")


class HubFiles(AbstractArchiveFileSystem):
    """The listing of a repository at a commit, for `find_files`. Raises UserError if neither the
    hub nor the cache has it."""

    protocol = "hf"
    cachable = False

    def __init__(self, uri: str) -> None:
        super().__init__()
        with _explain_errors(uri):
            place = _parse(uri)
            root = uri.removeprefix(SCHEME).removesuffix(place.path_in_repo).rstrip("/")
            sizes = {f"{root}/{path}": file.size for path, file in _list_files(place).items()}
        folders = dict.fromkeys((root, *self._all_dirnames(sizes)), 0)
        self.dir_cache = {
            name: {"name": name, "size": size, "type": kind}
            for names, kind in ((folders, "directory"), (sizes, "file"))
            for name, size in names.items()
        }

    def _get_dirs(self) -> None:
        """Does nothing: all is listed from the start."""

    def _open(self, path: str, mode: str = "rb", *others: Any, **options: Any) -> Any:
        uri = self.unstrip_protocol(path)
        if mode != "rb":
            raise UserError(f"{uri}: the hub is read, and cannot be written; choose another place")
        return local_copy(uri).open("rb")


def _list_files(place: HfUri) -> dict[str, _File]:
    """The files of a repository at a commit, by path; kept in the cache. Raises DataError for a
    path that leads out of a folder and for a digest that is none."""
    from huggingface_hub import HfApi, RepoFile

    listing = _cache() / "listings" / f"{place.revision}.json"
    if not listing.exists():
        uri, where = f"{SCHEME}{place.id}", {"revision": place.revision, "repo_type": place.type}
        tree = functools.partial(HfApi().list_repo_tree, place.id, recursive=True, **where)
        entries = fetch(uri, lambda: list(islice(tree(), _MOST_ENTRIES + 1)))
        if len(entries) > _MOST_ENTRIES:
            expected = f"at most {_MOST_ENTRIES:,} files and folders"
            raise DataError.at(uri, expected, "more", _CHECK)
        files: dict[str, _File] = {}
        for entry in entries:
            if isinstance(entry, RepoFile):
                digest = entry.lfs.sha256 if entry.lfs else entry.blob_id
                files[entry.path] = _check_entry(place, entry.path, _File(entry.size, digest))
        with _stage_file(listing) as aside:
            aside.write_text(json.dumps(files), "utf-8")
    return {path: _File(*file) for path, file in json.loads(listing.read_text("utf-8")).items()}


def _check_entry(place: HfUri, path: str, file: _File) -> _File:
    is_inside = isinstance(path, str) and not {"", ".", ".."} & set(path.split("/"))
    is_size = isinstance(file.size, int) and file.size >= 0
    if not (is_inside and is_size and _DIGEST.fullmatch(str(file.digest))):
        found = f"{path!r:.80} with {file.size!r:.20} bytes and {file.digest!r:.70}"
        expected = "paths below the repository with sizes and digests"
        raise DataError.at(f"{SCHEME}{place.id}", expected, found, _CHECK)
    return file


@contextlib.contextmanager
def _stage_file(path: Path) -> Iterator[Path]:
    """Give a file beside `path` that takes its name when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{uuid.uuid4().hex}.tmp")
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / "rungwise"


def _parse(uri: str) -> HfUri:
    from huggingface_hub import parse_hf_uri

    try:
        place = parse_hf_uri(uri)
        if place.type not in ("dataset", "model"):
            raise ValueError(f"it is a {place.type}")
    except ValueError as error:
        raise UserError(
            f"{uri}: expected hf://datasets/ORG/NAME/FILES or, for a model, hf://ORG/NAME, each "
            f"with @REVISION after NAME or without ({error})"
        ) from error
    return place


@contextlib.contextmanager
def _explain_errors(uri: str) -> Iterator[None]:
    """Turn an error of the hub into a UserError of one line."""
    try:
        yield
    except (UserError, DataError):
        raise
    except Exception as error:
        if reason := _explain(error):
            raise UserError(f"{uri}: {reason}") from error
        raise


@dataclass
class _Traffic:
    """The bytes of one call of huggingface_hub, from `begin` on."""

    source: str
    file_bytes: int
    begin: float
    num_bytes: int = 0

    def check(self) -> None:
        """Raise UserError if too little has come for the time."""
        seconds = time.monotonic() - self.begin - _PATIENCE_SECONDS
        if self.num_bytes < seconds * _SLOWEST_BYTES_PER_SECOND:
            raise UserError(
                f"{self.source}: {self.num_bytes:,} bytes have come, slower than "
                f"{_SLOWEST_BYTES_PER_SECOND:,} a second; try again later"
            )


_TRAFFIC: ContextVar[_Traffic | None] = ContextVar("traffic", default=None)


def fetch(source: str, call: Callable[[], T], file_bytes: int = 0) -> T:
    """Return what a call of huggingface_hub returns, which may be one for a file of so many bytes.
    Raises UserError if too little comes in its time, headers and pauses included, and DataError for
    what no hub answers, such as a longer file.

    A thread of its own makes the call, since nothing else ends one that waits for a header of which
    a byte comes now and then."""
    _bound_answers()
    traffic, result = _Traffic(source, file_bytes, time.monotonic()), Future[T]()

    def work() -> None:
        _TRAFFIC.set(traffic)
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, name="hub", daemon=True).start()
    while not wait([result], _LOOK_SECONDS).done:
        traffic.check()
    try:
        return result.result()
    except (UserError, OSError):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise DataError.at(source, "an answer of a hub", f"{found:.80}", _CHECK) from error


@functools.cache
def _bound_answers() -> None:
    """Give huggingface_hub, which drops its client after errors, one that bounds what `fetch`
    fetches."""
    import httpx2
    from huggingface_hub import get_session, set_client_factory

    requests = [*get_session().event_hooks["request"], _bound_request]
    options: Any = {"event_hooks": {"request": requests, "response": [_bound_answer]}}
    options |= {"follow_redirects": True, "timeout": None}
    set_client_factory(lambda: httpx2.Client(**options))


def _bound_request(request: Request) -> None:
    if (traffic := _TRAFFIC.get()) is None:
        return
    traffic.check()
    # As it is: what is compressed may unpack to anything, and cannot be continued.
    request.headers["Accept-Encoding"] = "identity"
    timeouts = request.extensions["timeout"]
    for name, seconds in timeouts.items():
        timeouts[name] = seconds or _SILENCE_SECONDS


def _bound_answer(response: Response) -> None:
    import httpx2

    if (traffic := _TRAFFIC.get()) is None:
        return
    source, stream = str(response.request.url.copy_with(query=None)), response.stream
    is_file = traffic.file_bytes and response.status_code in _STATUSES_OF_FILES
    most_bytes = traffic.file_bytes if is_file else _MOST_ANSWER_BYTES
    assert isinstance(stream, httpx2.SyncByteStream), "it has not been read"
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise DataError.at(source, "bytes as they are", f"{encoding:.20}", _CHECK)

    class BoundedStream(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            num_bytes = 0
            for piece in stream:
                num_bytes += len(piece)
                traffic.num_bytes += len(piece)
                traffic.check()
                if num_bytes > most_bytes:
                    expected, change = f"at most {most_bytes:,} bytes", "nothing was kept"
                    raise DataError.at(source, expected, "more", change)
                yield piece

        def close(self) -> None:
            stream.close()

    response.stream = BoundedStream()


def _explain(error: Exception) -> str:
    """The fault and its remedy in words; empty for an error that is not of the hub."""
    import httpx2
    from huggingface_hub import errors

    match error:
        case errors.RepositoryNotFoundError():  # also a gated one
            return (
                "there is no such repository, or it is private; check the name, ask for access on "
                "its page, or set HF_TOKEN"
            )
        case errors.RevisionNotFoundError():
            return "the repository has no such revision; change what follows @"
        case errors.RevisionResolutionError() | errors.OfflineModeIsEnabled():
            return _UNREACHABLE
        case httpx2.TransportError() | httpx2.TooManyRedirects():
            return _UNREACHABLE
        case errors.HfHubHTTPError():
            return f"the hub answers {error.response.status_code}; try again later"
        case OSError(errno=None):  # huggingface_hub's, for a body of another length
            return "what the hub sends has not the size that it lists"
        case OSError() if error.errno in DISK_IS_FULL:
            return "no room left for the hub's cache; free some, or set HF_HOME"
    return ""
