"""Ray Serve's replica without Ray: how much one request may ask for."""

import asyncio
import json
import math
from types import SimpleNamespace
from typing import Any

import mlflow.pyfunc
import pandas as pd
import pytest
from starlette.requests import Request

from rungwise.models.trained.language_models import Sampling
from rungwise.serving import ray_serve


class Echo:
    metadata = SimpleNamespace(get_params_schema=lambda: "one of a model that writes")

    def predict(self, texts: list[str], params: dict[str, Any]) -> pd.DataFrame:
        Sampling(**params)
        return pd.DataFrame({"text": texts, **params, "vector": math.nan})


@pytest.mark.parametrize(
    ("query", "body", "status", "says"),
    [
        ("", json.dumps(["a"] * 1000), 200, '"text":"a"'),
        ("", json.dumps(["a"] * 1001), 413, "expected at most 1,000 examples, found 1,001"),
        ("", json.dumps("a" * (1 << 20)), 413, "expected at most 1,048,576 bytes, found 1,048,578"),
        ("", "[", 400, "Expecting value"),
        ("length=9&temperature=0", '["a"]', 200, '[{"text":"a","length":9,"temperature":0.0}]'),
        ("length=-5", '["a"]', 400, "length: expected 0 or more, found -5"),
        ("length=x", '["a"]', 400, "?length=: expected a number, found 'x'"),
        ("lenght=9", '["a"]', 400, "?lenght=: expected one of length, temperature, top_k, seed"),
        ("length=11", json.dumps(["a"] * 1000), 413, "at most 10,000 new tokens, found 11,000"),
    ],
)
def test_a_request_is_bounded_by_its_work_and_its_bytes(
    query: str, body: str, status: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow.pyfunc, "load_model", lambda uri: Echo())

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [], "query_string": query.encode()}
    request = Request(scope, receive)
    answer = asyncio.run(ray_serve._Model("models:/x@champion")(request))
    assert answer.status_code == status
    assert says in bytes(answer.body).decode()


def test_a_body_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow.pyfunc, "load_model", lambda uri: Echo())
    monkeypatch.setattr(ray_serve, "_READING_SECONDS", 0.2)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b" ", "more_body": True}

    scope = {"type": "http", "method": "POST", "headers": [], "query_string": b""}
    model = ray_serve._Model("models:/x@champion")
    answer = asyncio.run(asyncio.wait_for(model(Request(scope, receive)), 5))
    assert (answer.status_code, json.loads(answer.body)) == (
        408,
        {"error": "the body has not come in 0.2 seconds"},
    )
