"""A proxy that stands before an S3 server and spoils what passes, by a seeded plan.

Every fault is one that clients of S3 meet: a request to slow down, connections reset at each point
of an exchange, bodies that stall, break off, or are shorter than asked for with headers that agree.
No request is spoilt more than twice in a row, so a client that tries four times gets through.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.conftest import bucket_at, moto_server

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
OF_EVERY_REQUEST = ("slow down", "reset before", "reset after")
OF_BODIES = ("reset within", "slow", "cut off", "shortened")
OF_UPLOADS = ("reset upload",)
_IN_A_ROW = 2
_STALL_SECONDS = 0.2
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class FaultyS3(http.server.ThreadingHTTPServer):
    """The proxy; `faults` counts what it did. Nothing is spoilt while `share` is 0."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        self.upstream = (parts.hostname, parts.port)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.plan(0.0)

    def plan(self, share: float, seed: int = 0) -> None:
        """From now on spoil this share of the requests."""
        with self._lock:
            self.share = share
            self._random = random.Random(seed)
            self._spoilt: Counter[str] = Counter()
            self.faults.clear()
            self.requests.clear()

    def fault(self, exchange: _Exchange, upload: bool) -> str:
        """What is to happen to this request, empty for nothing."""
        name = f"{exchange.command} {exchange.path} {exchange.headers.get('Range')}"
        with self._lock:
            self.requests[exchange.command] += 1
            chosen = self._random.random() < self.share
            if not chosen or self._spoilt[name] >= _IN_A_ROW:
                self._spoilt[name] = 0
                return ""
            kinds: list[str] = list(OF_EVERY_REQUEST)
            if exchange.command == "GET":
                kinds += OF_BODIES
            if upload:
                kinds += OF_UPLOADS
            # The one least used, so that a few dozen requests meet them all.
            kind = min(kinds, key=lambda one: (self.faults[one], self._random.random()))
            if kind != "slow":
                self._spoilt[name] += 1
            self.faults[kind] += 1
            return kind

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what this is about."""


class _Exchange(http.server.BaseHTTPRequestHandler):
    server: FaultyS3  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.close_connection = True

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        kind = self.server.fault(self, upload=length > 0)
        if kind == "reset upload":
            self.rfile.read(length // 2)
            return self._reset()
        body = self.rfile.read(length)
        if kind == "reset before":
            return self._reset()
        if kind == "slow down":
            return self._send(Answer(503, [("Content-Type", "application/xml")], SLOW_DOWN))
        answer = self._ask(body)
        if kind == "reset after":
            return self._reset()
        return self._send(answer, kind)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    def _ask(self, body: bytes) -> Answer:
        upstream = http.client.HTTPConnection(*self.server.upstream)
        headers = {name: value for name, value in self.headers.items() if name != "Expect"}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        found = Answer(answer.status, answer.getheaders(), answer.read())
        upstream.close()
        return found

    def _send(self, answer: Answer, kind: str = "") -> None:
        body = answer.body
        half = len(body) // 2
        sent = body[:half] if kind in ("reset within", "cut off", "shortened") else body
        announced = len(sent) if kind == "shortened" else len(body)
        lengths = [v for k, v in answer.headers if k.lower() == "content-length"]
        if self.command == "HEAD" and lengths:
            announced = int(lengths[0])
        self.send_response(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(announced))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "slow":
            self.wfile.write(sent[:half])
            time.sleep(_STALL_SECONDS)
            sent = sent[half:]
        self.wfile.write(sent)
        if kind == "reset within":
            self._reset()

    def _reset(self) -> None:
        """End the connection without a farewell: the client reads "connection reset by peer"."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        os.close(self.connection.detach())

    def log_message(self, format: str, *args: Any) -> None: ...


@contextlib.contextmanager
def faulty_s3(upstream: str) -> Iterator[FaultyS3]:
    """A proxy before the server at `upstream` for the time of the block."""
    with FaultyS3(upstream) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def faulty_moto(bucket: str) -> Iterator[FaultyS3]:
    """A proxy before a moto server with this bucket, which is reached through it as any S3 is."""
    with moto_server() as address, faulty_s3(address) as found, bucket_at(found.url, bucket):
        yield found
