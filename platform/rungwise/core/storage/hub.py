"""Files of the Hugging Face hub: hf://datasets/ORG/NAME@REVISION/PATH, and hf://ORG/NAME of models.

    hf://datasets/ORG/NAME/x ──pin──> hf://datasets/ORG/NAME@COMMIT/x ──> huggingface_hub's cache

A branch is replaced by its commit when a recipe is read, so that records name what was read. What
is read is first copied to the cache on this machine (HF_HOME), so that it is hashed as any file and
a later run needs no network. huggingface_hub takes the token from the environment (HF_TOKEN, or
`hf auth login`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.archive import AbstractArchiveFileSystem

from rungwise.core.errors import ConfigError, UserError
from rungwise.core.storage.store_errors import DISK_IS_FULL

if TYPE_CHECKING:
    from huggingface_hub import HfUri

SCHEME = "hf://"
# Nearly every repository has it, so that one small download brings the listing into the cache.
_SMALL_FILE = ".gitattributes"


def is_hub(uri: str) -> bool:
    return uri.startswith(SCHEME)


def pin_all(value: Any) -> Any:
    """Pin every address of the hub in plain data, those of one repository to the same commit.
    Raises ConfigError, naming the dotted key, where `pin` raises."""
    commits: dict[tuple[str, str, str | None], str] = {}

    def pinned(item: Any, key: str) -> Any:
        if isinstance(item, str) and is_hub(item):
            try:
                return pin(item, commits)
            except UserError as error:
                raise ConfigError(f"{key}: {error}") from error
        if isinstance(item, dict):
            return {name: pinned(each, f"{key}.{name}".lstrip(".")) for name, each in item.items()}
        if isinstance(item, list | tuple):
            return [pinned(each, f"{key}.{place}") for place, each in enumerate(item)]
        return item

    return pinned(value, "")


def pin(uri: str, commits: dict[tuple[str, str, str | None], str] | None = None) -> str:
    """Replace the revision of an address, by default the main branch, by its commit. Without
    network this is the commit that was read last. `commits` holds commits that were asked for.
    Raises UserError if there is no such repository or revision."""
    from huggingface_hub import HfApi

    commits = {} if commits is None else commits
    with _explained(uri):
        place = _parse(uri)
        key = (place.type, place.id, place.revision)
        if key not in commits:
            revision = HfApi().resolve_revision(
                place.id, repo_type=place.type, revision=place.revision
            )
            commits[key] = revision.resolved
        kind = "" if place.type == "model" else f"{place.type}s/"
        return f"{SCHEME}{kind}{place.id}@{commits[key]}/{place.path_in_repo}".rstrip("/")


def local_copy(uri: str) -> Path:
    """The file in the cache of this machine, fetched if need be. Raises UserError if it cannot."""
    from huggingface_hub import hf_hub_download

    with _explained(uri):
        place = _parse(pin(uri))
        return Path(
            hf_hub_download(
                place.id, place.path_in_repo, repo_type=place.type, revision=place.revision
            )
        )


class HubFiles(AbstractArchiveFileSystem):
    """The listing of a repository at a commit, for `find_files`. Raises UserError if neither the
    hub nor the cache has it."""

    protocol = "hf"
    cachable = False

    def __init__(self, uri: str) -> None:
        super().__init__()
        with _explained(uri):
            place = _parse(uri)
            root = uri.removeprefix(SCHEME).removesuffix(place.path_in_repo).rstrip("/")
            sizes = {f"{root}/{path}": size for path, size in _sizes(place).items()}
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


def _sizes(place: HfUri) -> dict[str, int]:
    """The bytes of each file of a repository at a commit."""
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})

    def cached() -> dict[str, int]:
        files = get_cached_repo_tree(place.id, repo_type=place.type, revision=place.revision)
        return {file.path: file.size for file in files}

    try:
        return cached()
    except CachedRepoTreeNotFoundError:
        snapshot_download(
            place.id,
            repo_type=place.type,
            revision=place.revision,
            allow_patterns=_SMALL_FILE,
            tqdm_class=Silent,
        )
        return cached()


def _parse(uri: str) -> HfUri:
    from huggingface_hub import parse_hf_uri

    place = parse_hf_uri(uri)
    if place.type not in ("dataset", "model"):
        raise ValueError(f"it is a {place.type}")
    return place


@contextlib.contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Turn an error of the hub into a UserError of one line."""
    import httpx2
    from huggingface_hub import errors

    def fault(reason: str) -> UserError:
        return UserError(f"{uri}: {reason}")

    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError as error:
        raise fault(
            "access is given on request; ask for it on the repository's page, then set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise fault(
            "the hub has no such repository, or it is private; check the name, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise fault("the repository has no such revision; change what follows @") from error
    except errors.RemoteEntryNotFoundError as error:
        raise fault("the repository has no such file") from error
    except (
        errors.LocalEntryNotFoundError,
        errors.RevisionResolutionError,
        errors.CachedRepoTreeNotFoundError,
        errors.OfflineModeIsEnabled,
        httpx2.TransportError,
    ) as error:
        raise fault(
            "the hub cannot be reached, and the cache of this machine lacks it; check the network, "
            "HF_ENDPOINT and HF_HUB_OFFLINE"
        ) from error
    except errors.HfHubHTTPError as error:
        raise fault(f"the hub answers {error.response.status_code}; try again later") from error
    except OSError as error:
        if error.errno not in DISK_IS_FULL:
            raise
        raise fault("no room left for the hub's cache; free some, or set HF_HOME") from error
    except ValueError as error:
        raise fault(
            "expected hf://datasets/ORG/NAME/FILES or, for a model, hf://ORG/NAME, each with "
            f"@REVISION after NAME or without ({error})"
        ) from error
