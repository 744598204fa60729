"""The files uploaded with a job, by Ray's own rules; refused if they are too large or look like
secrets. tests/unit/test_submission.py compares with packages made by Ray."""

from __future__ import annotations

import fnmatch
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from rungwise.core.errors import UserError
from rungwise.ray_private import default_excludes, folder_excludes, uri_of_folder, walk_folder

# The job server takes smaller requests only, and Ray does not compress.
MOST_BYTES = 100 << 20
_MOST_FILES = 100_000
_MOST_NAMES = 5
_SILENT = logging.Logger("packing", logging.CRITICAL + 1)
# Names that tools give to files with secrets; see _EXAMPLES for exceptions.
_SECRET_NAMES = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials"),
    *(".pgpass", "pgpass", ".my.cnf", ".boto", ".s3cfg", ".htpasswd", ".dockercfg"),
    *("credentials", "credentials.*", "*credentials.json", "service-account*.json"),
    *("auth_token", ".*token", "token", "token.txt", "*.token", "*_token", "kubeconfig*"),
    *("secrets.*", ".secrets", "*.tfvars", "*.tfvars.json", "*.tfstate", "*.tfstate.*"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.p12", "*.pfx", "*.jks", "*.keystore"),
    *("*.ppk", "*.kdbx"),
)
# Places where tools keep secrets under inconspicuous names.
_SECRET_PLACES = (".kube/config", ".docker/config.json", ".aws/*", ".ssh/*", ".gnupg/*", ".azure/*")
_EXAMPLES = ("*.example", "*.sample", "*.template")
# Certificates have these endings too, so their contents decide.
_KEY_NAMES = ("*.pem", "*.key")
_KEY_MARK = b"PRIVATE KEY-----"
_KEY_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Upload:
    """The bytes of each file, by its path relative to the folder. Paths of empty folders end with
    a slash."""

    sizes: Mapping[str, int]

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def largest(self) -> list[str]:
        names = sorted(self.sizes, key=lambda name: -self.sizes[name])[:_MOST_NAMES]
        return [f"{name} {decimal(self.sizes[name])}" for name in names]


def check_upload(folder: Path) -> Upload:
    """List the files of `folder` to upload. Raises UserError if they are too large for a cluster
    or one looks like a secret; only files with names of keys are read."""
    upload = list_files(folder)
    if upload.size_bytes >= MOST_BYTES:
        raise UserError(
            f"{folder} would be {decimal(upload.size_bytes)} to upload, and a cluster takes less "
            f"than {decimal(MOST_BYTES)}; the largest: {', '.join(upload.largest)}. Name what "
            f"the job does not need in {folder / '.rayignore'} (the syntax is .gitignore's), and "
            "put data where every machine reads it, such as s3://"
        )
    if secrets := [path for path in upload.sizes if _is_secret(folder, path)]:
        more = f" and {len(secrets) - _MOST_NAMES} more" if len(secrets) > _MOST_NAMES else ""
        raise UserError(
            f"{', '.join(secrets[:_MOST_NAMES])}{more} would be uploaded and looks like a secret; "
            f"name it in {folder / '.rayignore'}, and give machines rights by their role instead"
        )
    return upload


def list_files(folder: Path) -> Upload:
    """List what Ray would pack, without reading any file. Raises UserError if a part cannot be read
    or is a link to outside, or if the folder holds far more files than a project."""
    sizes: dict[str, int] = {}
    folder, real = folder.absolute(), folder.resolve()

    def add(path: Path) -> None:
        is_folder = path.is_dir()
        if is_folder and next(path.iterdir(), None) is not None:
            return
        if is_folder or path.is_file():
            if not os.access(path, os.R_OK):
                raise PermissionError(13, os.strerror(13), str(path))
            name = path.relative_to(folder).as_posix()
            if not path.resolve().is_relative_to(real):
                raise UserError(
                    f"{name} is a link to {path.resolve()}, outside of {folder}, and what is there "
                    "would be uploaded; exclude it in .rayignore, or copy it here"
                )
            sizes[f"{name}/" if is_folder else name] = 0 if is_folder else path.stat().st_size
            if len(sizes) > _MOST_FILES:
                raise UserError(
                    f"{folder} holds more than {_MOST_FILES:,} files; choose the project's own "
                    "folder with --working-dir, or exclude what a job does not need in .rayignore"
                )

    excludes = [folder_excludes(folder, default_excludes())]
    try:
        walk_folder(folder, excludes, add, include_gitignore=_obeys_gitignore(), logger=_SILENT)
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename} ({error.strerror}), which would be uploaded; exclude it "
            "in .rayignore, or make it readable"
        ) from error
    return Upload(dict(sorted(sizes.items())))


def package_uri(folder: Path) -> str:
    """The URI of the folder's package on a cluster, made from a digest of its content."""
    return uri_of_folder(str(folder), _obeys_gitignore(), excludes=default_excludes())


def _obeys_gitignore() -> bool:
    return os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"


def _is_secret(folder: Path, path: str) -> bool:
    name = path.rpartition("/")[2].lower()

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    if matches(_EXAMPLES):
        return False
    if matches(_SECRET_NAMES):
        return True
    if any(fnmatch.fnmatchcase(f"/{path}", f"*/{place}") for place in _SECRET_PLACES):
        return True
    if not matches(_KEY_NAMES):
        return False
    with (folder / path).open("rb") as file:
        return _KEY_MARK in file.read(_KEY_HEAD_BYTES)
