"""The files uploaded with a job, by Ray's own rules; refused if they are too large or look like
secrets. tests/unit/test_submission.py compares with packages made by Ray."""

import fnmatch
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from rungwise.core.errors import UserError
from rungwise.core.plural import list_first
from rungwise.ray_private import default_excludes, folder_excludes, walk_folder

# The job server takes smaller requests only, and Ray does not compress.
MOST_BYTES = 100 << 20
_MOST_FILES = 100_000
_MOST_NAMES = 5
_SILENT = logging.Logger("packing", logging.CRITICAL + 1)
# Names that tools give to files with secrets; see _EXAMPLES for exceptions. Private keys are
# recognised by their content.
_SECRET_NAMES = (
    *(
        ".env",
        ".env.*",
        "*.env",
        ".envrc",
        ".netrc",
        "_netrc",
        ".pypirc",
        ".npmrc",
        ".git-credentials",
    ),
    *(".pgpass", "pgpass", ".my.cnf", ".boto", ".s3cfg", ".htpasswd", ".dockercfg"),
    *("credentials", "credentials.*", "*credentials.json", "service-account*.json"),
    *("auth_token", ".*token", "token", "token.txt", "*.token", "*_token", "kubeconfig*"),
    *("secrets.*", ".secrets", "*.tfvars", "*.tfvars.json", "*.tfstate", "*.tfstate.*"),
    *("id_rsa", "id_dsa", "id_ecdsa*", "id_ed25519*", "*.p12", "*.pfx", "*.jks", "*.keystore"),
    *("*.ppk", "*.kdbx", "*.ovpn", "kaggle.json", ".databrickscfg", ".vault_pass*", "rclone.conf"),
    *(".terraformrc", "terraform.rc", "stored_tokens"),
)
# Places where tools keep secrets under inconspicuous names.
_SECRET_PLACES = (".kube/config", ".docker/config.json", ".aws/*", ".ssh/*", ".gnupg/*", ".azure/*")
# Without secrets, in spite of their names.
_EXAMPLES = ("*.example", "*.sample", "*.template", "*.pub")
# A private key in a file of any name. Code that only names the mark has no such line after it.
_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----.{0,400}?[A-Za-z0-9+/]{48}"
    rb"|PuTTY-User-Key-File-\d|AGE-SECRET-KEY-1[A-Z0-9]{40}",
    re.DOTALL,
)
# The first bytes of keys in binary form: a DER sequence of PKCS#8 or #1, SEC 1, PKCS#12, or of a
# PKCS#8 that is encrypted by PKCS#5; the marks of Java's two kinds of key stores and of KeePass.
_BINARY_KEY = re.compile(
    rb"0(?:[\x20-\x7f]|\x81.|\x82..)(?:\x02\x01\x00(?:0[\x05-\x20]\x06|\x02[\x81\x82])"
    rb"|\x02\x01\x01\x04[\x20-\x42]|\x02\x01\x030[\x80-\x82]|0.\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x05)"
    rb"|\xfe\xed\xfe\xed|\xce\xce\xce\xce|\x03\xd9\xa2\x9a",
    re.DOTALL,
)


@dataclass(frozen=True)
class Upload:
    """The bytes of each file by its path below the folder; that of an empty folder ends in /."""

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
    or one looks like a secret or holds a private key."""
    upload = list_files(folder)
    if upload.size_bytes >= MOST_BYTES:
        raise UserError(
            f"{folder} would be {decimal(upload.size_bytes)} to upload, and a cluster takes less "
            f"than {decimal(MOST_BYTES)}; the largest: {', '.join(upload.largest)}. Name what "
            f"the job does not need in {folder / '.rayignore'} (the syntax is .gitignore's), and "
            "put data where every machine reads it, such as s3://"
        )
    if secrets := [path for path in upload.sizes if _is_secret(folder, path)]:
        raise UserError(
            f"{list_first(secrets, _MOST_NAMES)} would be uploaded and looks like a secret; name "
            f"it in {folder / '.rayignore'}, and give machines rights by their role instead"
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


def _obeys_gitignore() -> bool:
    return os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"


def _is_secret(folder: Path, path: str) -> bool:
    name = path.rpartition("/")[2].lower()

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    place = any(fnmatch.fnmatchcase(f"/{path}", f"*/{place}") for place in _SECRET_PLACES)
    if not matches(_EXAMPLES) and (place or matches(_SECRET_NAMES)):
        return True
    if path.endswith("/"):
        return False
    data = (folder / path).read_bytes()
    # In UTF-16, as some shells write it, every other byte is 0.
    return bool(
        _BINARY_KEY.match(data) or _KEY.search(data) or _KEY.search(data.replace(b"\0", b""))
    )
