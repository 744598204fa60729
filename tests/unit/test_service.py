"""Requests to a served model, without a server: answered as by predict and MLflow, and counted."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rungwise.commands.models.predict import predict_lines
from rungwise.core.errors import DataError
from rungwise.serving.service import LONGEST_BODY, LONGEST_TEXT, Answer, Reply, Request, Service
from rungwise.tasks.data.unlabelled import read_lines
from rungwise.tasks.kinds.examples import Example, Kind
from tests.unit.test_predictor import INFO, RECORDS, load_served, make_model, numeric

HEADERS = {"host": "127.0.0.1:8000", "content-type": "application/json"}


def asked(
    service: Service, method: str, path: str, body: Any = None, headers: dict[str, str] = HEADERS
) -> tuple[int, Any]:
    """The status and the reply to a request whose examples come together as one batch."""

    async def pieces() -> AsyncIterator[bytes]:
        for first in range(0, len(content), 1 << 16):
            yield content[first : first + (1 << 16)]
            nonlocal read
            read = first

    async def ask(example: Example) -> Answer:
        await asyncio.sleep(0)
        waiting.append(example)
        while len(waiting) < len(body):
            await asyncio.sleep(0)
        return service.answer_examples(waiting)[waiting.index(example)]

    waiting: list[Example] = []
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    body = body if isinstance(body, list) else [body]
    read = 0
    reply: Reply = asyncio.run(service.handle(ask, Request(method, path, headers, pieces())))
    assert read <= LONGEST_BODY, "no more is read than is answered"
    is_json = reply.media_type == "application/json"
    return reply.status, json.loads(reply.body) if is_json else reply.body.decode()


@pytest.mark.parametrize("kind", list(INFO))
def test_a_request_gets_what_predict_writes_and_is_refused_in_its_words(
    kind: Kind, tmp_path: Path
) -> None:
    predictor = make_model(tmp_path, kind, "mlm_nsp")
    service, records = Service(predictor), RECORDS[kind]
    status, told = asked(service, "POST", "/predict", records)
    assert status == 200
    lines = [json.dumps(record) for record in records]
    written = predict_lines(predictor, read_lines(lines, "jsonl", INFO[kind], "input"), 64)
    for own, line in zip(told, "".join(written).splitlines(), strict=True):
        expected = json.loads(line)
        del expected["where"]
        assert own.keys() == expected.keys()
        for name, value in expected.items():
            assert own[name] == (pytest.approx(value, abs=1e-5) if numeric(value) else value)
    assert asked(service, "POST", "/predict", predictor.example)[0] == 200
    assert asked(service, "POST", "/predict", []) == (200, [])

    served = load_served(tmp_path)
    for bad in ([*records, {"what": "w5"}], [*records, dict.fromkeys(records[0])], [1.5]):
        with pytest.raises(DataError) as refused:
            served.predict(SimpleNamespace(), bad)
        assert asked(service, "POST", "/predict", bad) == (400, {"error": str(refused.value)})
    if kind != "span":
        with pytest.raises(DataError) as by_line:
            list(read_lines(['{"what": "w5"}'], "jsonl", INFO[kind], "input"))
        error = asked(service, "POST", "/predict", {"what": "w5"})[1]["error"]
        assert error.partition(": ")[2] == str(by_line.value).partition(": ")[2]


class _Picky:
    """Refuses one text."""

    info = INFO["classification"]

    def __call__(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        if any(example.text == "bad" for example in examples):
            raise DataError("input: bad is refused")
        return [{"label": example.text} for example in examples]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "10.0.0.1"}, 200),
        ({"host": "Model.example:8000"}, 200),  # a name of its own
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"host": "rebound.example:8000"}, 403),
        ({"host": "127.0.0.1.rebound.example"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://other.example"}, 403),
        ({"origin": "http://127.0.0.1:9000"}, 403),  # another service of this machine
        ({"origin": "null"}, 403),
        ({"content-type": "text/plain"}, 415),  # what a form of another site may send unasked
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": ""}, 415),
    ],
)
def test_only_those_who_may_ask_are_answered(headers: dict[str, str], status: int) -> None:
    service = Service(_Picky(), ["model.example"])  # pyright: ignore[reportArgumentType]
    code, reply = asked(service, "POST", "/predict", "one", {**HEADERS, **headers})
    assert code == status
    if status != 200:
        assert "expected " in reply["error"]
        [(name, value)] = headers.items()
        assert repr(value) in reply["error"], name


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b'"' + b"a" * (64 << 20) + b'"', 413, "at most 8,388,608 bytes"),
        (
            "a" * (LONGEST_TEXT + 1),
            413,
            "input 1: expected at most 100,000 characters, found 100,001",
        ),
        (b"[" * 100_000, 400, "of a few levels"),
        (b'{"text": ' * 900 + b"1" + b"}" * 900, 400, "expected |is "),
        (b"text=hello", 400, r"found 'text=hello'"),
        ({"txt": "a"}, 400, "needs text, found txt"),
        ({"text": 5}, 400, "text is 5 and not a text"),
        (5, 400, "found 5"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_read_is_refused_by_what_came(body: Any, status: int, error: str) -> None:
    service = Service(_Picky())  # pyright: ignore[reportArgumentType]
    code, reply = asked(service, "POST", "/predict", body)
    assert (code, bool(re.search(error, reply["error"]))) == (status, True), reply
    assert asked(service, "POST", "/predict", "a" * LONGEST_TEXT)[0] == 200


def test_what_is_no_request_is_told_so_and_one_that_is_refused_costs_no_other_its_answer() -> None:
    service = Service(_Picky())  # pyright: ignore[reportArgumentType]
    assert asked(service, "GET", "/health") == (200, {"status": "ok"})
    assert asked(service, "GET", "/predict")[0] == 405
    assert asked(service, "POST", "/what")[0] == 404
    for body in (b"", b"{", b"\xff", b"5", b"null"):
        status, told = asked(service, "POST", "/predict", body)
        assert status == 400
        assert told["error"].startswith("expected ")
    # The message quotes the key, half of a character, which UTF-8 cannot hold.
    status, told = asked(service, "POST", "/predict", b'{"\\ud800": "one"}')
    assert (status, told["error"][-1]) == (400, "\ud800")
    assert asked(service, "POST", "/predict", "one") == (200, {"label": "one"})
    assert asked(service, "POST", "/predict", ["one", "bad"])[0] == 400
    examples: Any = [SimpleNamespace(text=text) for text in ("one", "bad", "two")]
    first, refused, last = service.answer_examples(examples)
    assert (first, last) == ({"label": "one"}, {"label": "two"})
    assert isinstance(refused, DataError)
    status, text = asked(service, "GET", "/metrics")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert status == 200
    assert samples["rungwise_serve_requests_total", "200"] == 1
    assert samples["rungwise_serve_requests_total", "400"] == 7
    assert samples["rungwise_serve_seconds_count",] == 8
    # One, then two whose answers are asked for twice, then three.
    assert samples["rungwise_serve_batch_examples_count",] == 4
    assert samples["rungwise_serve_batch_examples_sum",] == 8
