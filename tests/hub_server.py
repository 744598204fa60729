"""A server on loopback that answers as the Hugging Face hub does: repositories, by commit."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import huggingface_hub.constants as constants
import pytest

from tests.file_server import FileServer, Reply, serving

# kind (datasets or models), name, and what follows
_API = re.compile(
    r"/api/(datasets|models)/([^/]+/[^/]+)(?:/(revision|tree)/([^/?]+))?(?:/([^?]*))?(\?.*)?"
)
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Hub(FileServer):
    """`repositories` are lists of commits, the last of which is main. A repository in `private`
    is shown only to who sends `token`; `gated` ones are known to exist."""

    find: Callable[[str], bytes | None] = lambda path: None
    repositories: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    token: str = ""

    def push(self, name: str, files: dict[str, bytes]) -> str:
        """Add a commit to the repository `datasets/ORG/NAME` or `models/ORG/NAME`; return it."""
        self.repositories.setdefault(name, []).append({".gitattributes": b"", **files})
        return self.commits(name)[-1]

    def push_folder(self, name: str, folder: Path) -> str:
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        return self.push(name, files)

    def commits(self, name: str) -> list[str]:
        digest, commits = hashlib.sha1(name.encode()), []
        for files in self.repositories[name]:
            for path, data in sorted(files.items()):
                digest.update(path.encode() + b"\0" + data)
            commits.append(digest.hexdigest())
        return commits

    def reply(self, path: str, headers: dict[str, str]) -> Reply:
        api, file = _API.fullmatch(path), _FILE.fullmatch(path)
        if api:
            name, revision = f"{api[1]}/{api[2]}", api[4]
        elif file:
            name, revision = f"{'datasets' if file[1] else 'models'}/{file[2]}", file[3]
        else:
            return 404, {}, b""
        allowed = bool(self.token) and headers.get("Authorization") == f"Bearer {self.token}"
        if name not in self.repositories or (name in self.private and not allowed):
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if name in self.gated and not allowed:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        commits = self.commits(name)
        revision = unquote(revision or "main")
        commit = commits[-1] if revision == "main" else revision
        if commit not in commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        files = self.repositories[name][commits.index(commit)]
        if api:
            answer = self._tree(files) if api[3] == "tree" else self._about(api[2], commit, files)
            return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()
        assert file is not None
        data = files.get(unquote(file[4]))
        if data is None:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        tag = {"ETag": f'"{_blob(data)}"', "X-Repo-Commit": commit}
        status, more, part = FileServer(lambda _: data).reply(path, headers)
        return status, more | tag, part

    def _about(self, name: str, commit: str, files: dict[str, bytes]) -> dict[str, object]:
        siblings = [{"rfilename": path} for path in files]
        return {"_id": "0", "id": name, "sha": commit, "siblings": siblings}

    def _tree(self, files: dict[str, bytes]) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": path, "size": len(data), "oid": _blob(data)}
            for path, data in files.items()
        ]


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextlib.contextmanager
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub for this process, and by its environment for others, whose cache is below `folder`."""
    with serving(Hub()) as server:
        assert isinstance(server, Hub)
        go_to(server.url, folder, monkeypatch)
        yield server


def go_to(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the hub at `url`. huggingface_hub reads the environment when it is imported."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("HF_HOME", str(folder))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):  # benchmarks set the latter
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
