"""A hub and a mirror that answer as no server does: one line, soon, nothing is kept."""

import contextlib
import gzip
import hashlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rungwise.core.errors import UserError
from rungwise.core.public_data import Download, download
from rungwise.core.storage import hub
from tests.hub_server import go_to

TEXT = b"text"
BLOB = hashlib.sha1(b"blob 4\0" + TEXT).hexdigest()
ABOUT = json.dumps({"id": "org/name", "sha": "a" * 40, "siblings": []}).encode()
TREE = json.dumps([{"type": "file", "path": "x.txt", "size": 4, "oid": BLOB}]).encode()
PART = Download(url="https://example.org/x", bytes=4, sha256=hashlib.sha256(TEXT).hexdigest())


def whole(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, b"Connection: close", b"", body])


@dataclass
class Answer:
    """`first`, then `piece` again and again, unless it is empty, with a pause before each."""

    first: bytes
    piece: bytes = b""
    pause: float = 0.0


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b" " * 65536 + b"\r\n"
# Read in one way whatever was asked for of a hub, and in one way for any file.
READINGS = {
    "a status in drips": Answer(b"HTTP", b"/", 0.05),
    "a header in drips": Answer(OK + b"X: ", b"x", 0.05),
    "headers in drips": Answer(OK, b"X: y\r\n", 0.05),
    "headers without end": Answer(OK, b"X: y\r\n" * 1000),
    "early hints in drips": Answer(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.05),
    "early hints without end": Answer(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000),
    "silence": Answer(b"", b" ", 60),
    "chunks in drips": Answer(OK + CHUNKED, b"1\r\n \r\n", 0.05),
    "chunks without end": Answer(OK + CHUNKED, CHUNK),
    "the line of a chunk without end": Answer(OK + CHUNKED + b"1;x=", b"x" * 65536),
    "an error without end": Answer(b"HTTP/1.1 404 Not Found\r\n" + CHUNKED, CHUNK),
    "a redirect without end": Answer(b"HTTP/1.1 302 Found\r\nLocation: /loop\r\n" + CHUNKED, CHUNK),
    "a loop": Answer(whole(b"", b"Location: /loop", status=b"302 Found")),
    "a way to a file": Answer(whole(b"", b"Location: file:///etc/passwd", status=b"302 Found")),
    "fewer bytes than it states": Answer(OK + b"Content-Length: 9999\r\n\r\n["),
    "a length below zero": Answer(OK + b"Content-Length: -4\r\n\r\ntext"),
    "two lengths": Answer(OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\ntext"),
    "a bomb": Answer(whole(gzip.compress(bytes(10**8)), b"Content-Encoding: gzip")),
    "no HTTP": Answer(bytes(range(256)) * 99),
    "nothing": Answer(b""),
}
# Of these it matters what was asked for.
BODIES = {
    "pages without end": Answer(whole(b"[]", b'Link: </api/tree/loop>; rel="next"')),
    "a pause of years": Answer(whole(b"", b"Retry-After: 99999999", status=b"429 Too Many")),
    "an empty body": Answer(whole(b"")),
    "another body": Answer(whole(b"<html>login</html>")),
    "numbers": Answer(whole(b"[1, 2]")),
    "null": Answer(whole(b"null")),
    "nests": Answer(whole(b"[" * 100_000)),
    "a path that is none": Answer(whole(TREE.replace(b'"x.txt"', b"{}"))),
}
ANSWERS = READINGS | BODIES
CASES = [
    *((name, part) for name in BODIES for part in ("commit", "listing")),
    *((name, ("commit", "listing")[number % 2]) for number, name in enumerate(READINGS)),
    *((name, ("file", "mirror")[number // 2 % 2]) for number, name in enumerate(ANSWERS)),
]


@contextlib.contextmanager
def serving(answer: Answer, part: str) -> Iterator[str]:
    """A hub on loopback that gives `answer` for one part, and for addresses that it leads to."""

    def reply(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if not (request := connection.recv(65536)):
                return
            path = request.split()[1]
            kinds = {"file": b"/resolve/", "listing": b"/tree/", "mirror": b"example.org"}
            kind = next((name for name, mark in kinds.items() if mark in path), "commit")
            if kind != part and b"loop" not in path:
                bodies = {"file": TEXT, "listing": TREE, "commit": ABOUT}
                connection.sendall(whole(bodies[kind]))
                return
            connection.sendall(answer.first)
            for _ in itertools.repeat(None) if answer.piece else ():
                if is_over.wait(answer.pause):
                    return
                connection.sendall(answer.piece)

    def accept() -> None:
        while not is_over.is_set():
            connection, _ = listening.accept()
            threading.Thread(target=reply, args=(connection,), daemon=True).start()

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # Else a call that was left has megabytes to read while other tests run.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        thread = threading.Thread(target=accept)
        thread.start()
        host, port = listening.getsockname()
        yield f"http://{host}:{port}"
        is_over.set()
        socket.create_connection((host, port)).close()
        thread.join()


def fetch(part: str, url: str, folder: Path) -> Path:
    if part == "mirror":
        return download(PART, folder, url, lambda line: None)
    return hub.local_copy("hf://datasets/org/name/x.txt")


@pytest.mark.parametrize(("name", "part"), CASES)
def test_a_server_that_answers_as_none_does_is_left_soon_in_one_line(
    name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A call that was left would report its last tries while other tests run.
    monkeypatch.setattr("huggingface_hub.utils._http.logger.disabled", True)
    monkeypatch.setattr(hub, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(hub, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(hub, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(hub, "_MOST_ANSWER_BYTES", 1 << 20)
    with serving(ANSWERS[name], part) as url:
        go_to(url, tmp_path / "hub", monkeypatch)
        begin = time.monotonic()
        with pytest.raises(UserError) as error:
            fetch(part, url, tmp_path)
        assert time.monotonic() - begin < 10
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert not list(tmp_path.rglob("x.txt"))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1000
