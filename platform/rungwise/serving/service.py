"""A model behind HTTP, independent of the server.

POST /predict   a text, an object with named values, or a list of these, as JSON
                200: the prediction, or a list of them; 400: {"error": as `rungwise predict`}
GET  /health    200 once the model is loaded
GET  /metrics   metrics for Prometheus

A page in a browser must reach the model neither by a name that it makes resolve to this machine
(403 for an unknown Host) nor from another site (403 for its Origin, 415 for any type but JSON, for
which a browser asks first). A tokenizer takes 300 bytes of memory a character: 413 for more than
LONGEST_BODY or LONGEST_TEXT.
"""

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from rungwise.core.errors import DataError
from rungwise.serving.pretrained import Model
from rungwise.tasks.data.unlabelled import parse_examples
from rungwise.tasks.kinds.examples import Example

Answer = dict[str, Any] | DataError
LONGEST_BODY = 8 << 20  # bytes
LONGEST_TEXT = 100_000  # characters of an example
_METHODS = {"/predict": "POST", "/health": "GET", "/metrics": "GET"}
_JSON = "application/json"


class Request(NamedTuple):
    """A request; the names of `headers` are in lower case, and `body` comes in pieces."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


class Reply(NamedTuple):
    """The status, the body, and the type of the body."""

    status: int
    body: bytes
    media_type: str = _JSON


class _RefusedError(Exception):
    """The request gets this reply."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.reply = _reply(status, {"error": message})


class Service:
    """Answers requests with a model and counts them. `hosts` are the names of this server; its
    addresses and localhost need no mention."""

    def __init__(self, predictor: Model, hosts: Collection[str] = ()) -> None:
        self._predictor = predictor
        self._hosts = {"localhost", *(name.lower() for name in hosts)}
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "rungwise_serve_requests", "Requests to /predict", ["status"], registry=self._registry
        )
        self._seconds = Histogram(
            "rungwise_serve_seconds", "Time of a request to /predict", registry=self._registry
        )
        self._batches = Histogram(
            "rungwise_serve_batch_examples",
            "Examples in a batch of the model",
            buckets=[1, 2, 4, 8, 16, 32, 64],
            registry=self._registry,
        )

    def answer_examples(self, examples: Sequence[Example]) -> list[Answer]:
        """One answer per example, or its own error if the model refuses it: one bad example must
        not fail other requests in the batch."""
        self._batches.observe(len(examples))
        try:
            return list(self._predictor(examples))
        except DataError:
            return [self._answer_one(example) for example in examples]

    def _answer_one(self, example: Example) -> Answer:
        try:
            return self._predictor([example])[0]
        except DataError as error:
            return error

    async def handle(self, ask: Callable[[Example], Awaitable[Answer]], request: Request) -> Reply:
        """The reply to a request; `ask` passes an example to `answer_examples`, in a batch with
        others."""
        path, status = request.path, 500  # for an error of our own, which the server reports
        try:
            self._check(request)
            if path == "/health":
                return Reply(200, b'{"status": "ok"}\n')
            if path == "/metrics":
                return Reply(200, generate_latest(self._registry), "text/plain; version=0.0.4")
            with self._seconds.time():
                reply = await self._predict(ask, request)
            status = reply.status
            return reply
        except _RefusedError as error:
            status = error.reply.status
            return error.reply
        finally:
            if path == "/predict":
                self._requests.labels(str(status)).inc()

    def _check(self, request: Request) -> None:
        """Refuse a request that this server does not answer, or not to whoever asks."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self._is_own(host):
            raise _RefusedError(
                403,
                f"the request is for the host {host!r:.80}; expected an address, localhost or a "
                "name given with --allow-host",
            )
        if origin is not None and origin.partition("://")[2] != host:
            raise _RefusedError(403, f"expected no request of another site, found {origin!r:.80}")
        if request.path not in _METHODS:
            expected = ", ".join(_METHODS)
            raise _RefusedError(404, f"there is no {request.path:.80}; expected {expected}")
        if request.method != (method := _METHODS[request.path]):
            raise _RefusedError(
                405, f"expected {method} {request.path}, found {request.method:.80}"
            )

    def _is_own(self, host: str) -> bool:
        """Whether `host`, with or without a port, is this server. A site that wants to be taken for
        it has a name: an address needs no resolution."""
        name = ""
        with contextlib.suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self._hosts

    async def _predict(
        self, ask: Callable[[Example], Awaitable[Answer]], request: Request
    ) -> Reply:
        media_type = request.headers.get("content-type", "")
        if media_type.partition(";")[0].strip().lower() != _JSON:
            raise _RefusedError(415, f"expected content-type: {_JSON}, found {media_type!r:.80}")
        body = await _read_body(request)
        try:
            value = json.loads(body)
            examples = parse_examples(value, self._predictor.info)
        except RecursionError:
            raise _RefusedError(400, "expected JSON of a few levels, found too many") from None
        except ValueError as error:
            start = body[:80].decode(errors="backslashreplace")
            raise _RefusedError(
                400, f'expected JSON, such as {{"text": "..."}}, found {start!r}: {error}'
            ) from None
        except DataError as error:
            raise _RefusedError(400, str(error)) from None
        for example in examples:
            if (length := sum(map(len, example.parts))) > LONGEST_TEXT:
                raise _RefusedError(
                    413,
                    f"{example.where}: expected at most {LONGEST_TEXT:,} characters, found "
                    f"{length:,}; cut the text, or use rungwise predict, which has no limit",
                )
        answers = await asyncio.gather(*map(ask, examples))
        for answer in answers:
            if isinstance(answer, DataError):
                raise _RefusedError(400, str(answer))
        return _reply(200, answers if isinstance(value, list) else answers[0])


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.body:
        body += piece
        if len(body) > LONGEST_BODY:
            raise _RefusedError(
                413, f"expected a body of at most {LONGEST_BODY:,} bytes, found more"
            )
    return bytes(body)


def _reply(status: int, value: Any) -> Reply:
    # A message may quote half of a character (a lone surrogate), which JSON can only escape.
    text = json.dumps(value, ensure_ascii=False) + "\n"
    return Reply(status, text.encode(errors="backslashreplace"))
