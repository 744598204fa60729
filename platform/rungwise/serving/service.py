"""A model behind HTTP, independent of the server.

POST /predict   a text, an object with named values, or a list of these, as JSON
                200: the prediction, or a list of them; 400: {"error": as `rungwise predict`}
GET  /health    200 once the model is loaded
GET  /metrics   metrics for Prometheus
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from rungwise.core.errors import DataError
from rungwise.serving.pretrained import Model
from rungwise.tasks.data.unlabelled import parse_examples
from rungwise.tasks.kinds.examples import Example

Answer = dict[str, Any] | DataError
_METHODS = {"/predict": "POST", "/health": "GET", "/metrics": "GET"}


class Reply(NamedTuple):
    """The status, the body, and the type of the body."""

    status: int
    body: bytes
    media_type: str = "application/json"


class Service:
    """Answers requests with a model and counts them."""

    def __init__(self, predictor: Model) -> None:
        self._predictor = predictor
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

    async def handle(
        self, ask: Callable[[Example], Awaitable[Answer]], method: str, path: str, body: bytes
    ) -> Reply:
        """The reply to a request; `ask` passes an example to `answer_examples`, in a batch with
        others."""
        if path not in _METHODS:
            return _error(404, f"there is no {path}; expected {', '.join(_METHODS)}")
        if method != _METHODS[path]:
            return _error(405, f"expected {_METHODS[path]} {path}, found {method}")
        if path == "/health":
            return Reply(200, b'{"status": "ok"}\n')
        if path == "/metrics":
            return Reply(200, generate_latest(self._registry), "text/plain; version=0.0.4")
        status = 500  # for an error that is not the caller's, which the server reports
        try:
            with self._seconds.time():
                reply = await self._predict(ask, body)
            status = reply.status
        finally:
            self._requests.labels(str(status)).inc()
        return reply

    async def _predict(self, ask: Callable[[Example], Awaitable[Answer]], body: bytes) -> Reply:
        try:
            value = json.loads(body)
            examples = parse_examples(value, self._predictor.info)
        except ValueError as error:
            return _error(400, f'expected JSON, such as {{"text": "..."}}; {error}')
        except DataError as error:
            return _error(400, str(error))
        answers = await asyncio.gather(*map(ask, examples))
        for answer in answers:
            if isinstance(answer, DataError):
                return _error(400, str(answer))
        return _reply(200, answers if isinstance(value, list) else answers[0])


def _error(status: int, message: str) -> Reply:
    return _reply(status, {"error": message})


def _reply(status: int, value: Any) -> Reply:
    # A message may quote half of a character (a lone surrogate), which JSON can only escape.
    text = json.dumps(value, ensure_ascii=False) + "\n"
    return Reply(status, text.encode(errors="backslashreplace"))
