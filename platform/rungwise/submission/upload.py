"""The files uploaded with a job; refused if they are too large or look like secrets."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.filesize import decimal

from rungwise.core.errors import UserError
from rungwise.submission.packing import MOST_BYTES, Packed, package_bytes, packed

_SHOWN = 5
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
_KEY_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Upload:
    files: tuple[Packed, ...]
    size_bytes: int

    @property
    def largest(self) -> tuple[str, ...]:
        return _largest(self.files)

    def holds(self, path: str) -> bool:
        return path in self._paths

    @cached_property
    def _paths(self) -> set[str]:
        return {file.path for file in self.files}


def examine(folder: Path) -> Upload:
    """List the files of `folder` to upload. Raises UserError if they are too large for a cluster
    or one looks like a secret; only files with names of keys are read."""
    files = packed(folder)
    size = package_bytes(files)
    if size >= MOST_BYTES:
        raise UserError(
            f"{folder} would be {decimal(size)} to upload, and a cluster takes less than "
            f"{decimal(MOST_BYTES)}; the largest: {', '.join(_largest(files))}. Name what "
            f"the job does not need in {folder / '.rayignore'} (the syntax is .gitignore's), and "
            "put data where every machine reads it, such as s3://"
        )
    if secrets := [file.path for file in files if _secret(folder, file.path)]:
        more = f" and {len(secrets) - _SHOWN} more" if len(secrets) > _SHOWN else ""
        raise UserError(
            f"{', '.join(secrets[:_SHOWN])}{more} would be uploaded and looks like a secret; name "
            f"it in {folder / '.rayignore'}, and give machines rights by their role instead"
        )
    return Upload(tuple(files), size)


def _largest(files: list[Packed] | tuple[Packed, ...]) -> tuple[str, ...]:
    first = sorted(files, key=lambda file: -file.size_bytes)[:_SHOWN]
    return tuple(f"{file.path} {decimal(file.size_bytes)}" for file in first)


def _secret(folder: Path, path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    if any(fnmatch.fnmatchcase(name, example) for example in _EXAMPLES):
        return False
    if any(fnmatch.fnmatchcase(name, secret) for secret in _SECRET_NAMES):
        return True
    if any(fnmatch.fnmatchcase(f"/{path}", f"*/{place}") for place in _SECRET_PLACES):
        return True
    if not any(fnmatch.fnmatchcase(name, key) for key in _KEY_NAMES):
        return False
    with (folder / path).open("rb") as file:
        return _KEY_MARK in file.read(_KEY_READ_BYTES)
