"""Ray Serve's replica without Ray: how much one request may ask for."""

import asyncio
import json
from typing import Any

import mlflow.pyfunc
import pandas as pd
import pytest
from starlette.requests import Request

from rungwise.serving import ray_serve


class Echo:
    def predict(self, texts: list[str]) -> pd.DataFrame:
        return pd.DataFrame({"text": texts})


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (json.dumps(["a"] * 1000), 200, '"text":"a"'),
        (json.dumps(["a"] * 1001), 413, "expected at most 1,000 examples, found 1,001"),
        (json.dumps("a" * (4 << 20)), 413, "expected at most 4,194,304 bytes, found 4,194,306"),
        ("[", 400, "Expecting value"),
    ],
)
def test_a_request_is_bounded_by_its_work_and_its_bytes(
    body: str, status: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow.pyfunc, "load_model", lambda uri: Echo())

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    answer = asyncio.run(ray_serve._Model("models:/x@champion")(request))
    assert answer.status_code == status
    assert says in bytes(answer.body).decode()
