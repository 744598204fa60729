"""A registered model as an application of Ray Serve, for more than one machine.

    serve run rungwise.serving.ray_serve:application model=models:/NAME@champion replicas=2

The registry is that of MLFLOW_TRACKING_URI. A POST of a text, an object with named values or a list
of these, as JSON, gets a list of answers as `rungwise predict` gives them. A model that writes
continues each text with `?length=40&temperature=0.8&top_k=50&seed=1`. A fault in what was sent has
the status 400, and more than one request may ask for 413.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import mlflow.pyfunc
from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import JSONResponse

from rungwise.core.errors import DataError, UserError
from rungwise.serving.limits import MOST_BYTES, RequestTooLarge, check_size, check_work

_MOST_AT_ONCE = 100  # requests that a replica reads, and as many wait; another is answered 503
_READING_SECONDS = 10.0


def application(arguments: dict[str, str]) -> Application:
    """Build the application from `model`, the URI of a model in MLflow, and `replicas`."""
    limits: Any = {"max_ongoing_requests": _MOST_AT_ONCE, "max_queued_requests": _MOST_AT_ONCE}
    replicas = int(arguments.get("replicas", 1))
    deployment: Any = serve.deployment(_Model, num_replicas=replicas, **limits)
    return deployment.bind(arguments["model"])


class _Model:
    def __init__(self, uri: str) -> None:
        self._model = mlflow.pyfunc.load_model(uri)

    async def __call__(self, request: Request) -> Any:
        body, query = bytearray(), dict(request.query_params)
        try:
            async with asyncio.timeout(_READING_SECONDS):
                async for piece in request.stream():
                    body += piece
                    check_size(len(body), MOST_BYTES, "bytes")
            # In a thread, so that requests are accepted while the model computes.
            return JSONResponse(await asyncio.to_thread(self._answer, body, query))
        except TimeoutError:
            error = f"the body has not come in {_READING_SECONDS:g} seconds"
            return JSONResponse({"error": error}, status_code=408)
        except RequestTooLarge as error:
            return JSONResponse({"error": str(error)}, status_code=413)
        except (UserError, ValueError, RecursionError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    def _answer(self, body: bytearray, query: Mapping[str, str]) -> list[dict[str, Any]]:
        message = json.loads(body)
        texts = len(message) if isinstance(message, list) else 1
        params = _read_params(query)
        check_work(texts, params.get("length", 0))
        if params and self._model.metadata.get_params_schema() is None:
            raise DataError(f"?{next(iter(params))}=: this model does not write; leave it out")
        answers = self._model.predict(message, params).to_dict("records")
        # Answers of one request may differ in their keys; pandas fills the gaps with NaN.
        return [{key: value for key, value in row.items() if value == value} for row in answers]


def _read_params(query: Mapping[str, str]) -> dict[str, Any]:
    kinds = {"length": int, "temperature": float, "top_k": int, "seed": int}
    params = {}
    for name, text in query.items():
        if name not in kinds:
            raise DataError(f"?{name}=: expected one of {', '.join(kinds)}")
        try:
            params[name] = kinds[name](text)
        except ValueError:
            raise DataError(f"?{name}=: expected a number, found {text!r}") from None
    return params
