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

from rungwise.core.errors import DataError

# Of one request, so that it holds others up for seconds at most: texts of a letter cost no less
# than a sentence.
MOST_EXAMPLES = 1000
MOST_BYTES = 4 << 20
MOST_NEW = 10_000  # tokens


def application(arguments: dict[str, str]) -> Application:
    """Build the application from `model`, the URI of a model in MLflow, and `replicas`."""
    deployment: Any = serve.deployment(_Model, num_replicas=int(arguments.get("replicas", 1)))
    return deployment.bind(arguments["model"])


class _Model:
    def __init__(self, uri: str) -> None:
        self._model = mlflow.pyfunc.load_model(uri)

    async def __call__(self, request: Request) -> Any:
        body, query = await request.body(), dict(request.query_params)
        try:
            # In a thread, so that requests are accepted while the model computes.
            return JSONResponse(await asyncio.to_thread(self._answer, body, query))
        except _RequestTooLarge as error:
            return JSONResponse({"error": str(error)}, status_code=413)
        except (DataError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    def _answer(self, body: bytes, query: Mapping[str, str]) -> list[dict[str, Any]]:
        _check_size(len(body), MOST_BYTES, "bytes")
        message = json.loads(body)
        texts = len(message) if isinstance(message, list) else 1
        _check_size(texts, MOST_EXAMPLES, "examples")
        params = _read_params(query)
        if params and self._model.metadata.get_params_schema() is None:
            raise DataError(f"?{next(iter(params))}=: this model does not write; leave it out")
        _check_size(texts * params.get("length", 0), MOST_NEW, "new tokens")
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


class _RequestTooLarge(DataError):
    pass


def _check_size(size: int, most: int, unit: str) -> None:
    if size > most:
        raise _RequestTooLarge(
            f"expected at most {most:,} {unit}, found {size:,}; send several requests"
        )
