"""A registered model as an application of Ray Serve, for more than one machine.

    serve run rungwise.serving.ray_serve:application model=models:/NAME@champion replicas=2

The registry is that of MLFLOW_TRACKING_URI. A POST of a text, an object with named values or a list
of these, as JSON, gets a list of answers as `rungwise predict` gives them. A fault in what was sent
has the status 400, and more than one request may ask for 413.
"""

import asyncio
import json
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


def application(arguments: dict[str, str]) -> Application:
    """Build the application from `model`, the URI of a model in MLflow, and `replicas`."""
    deployment: Any = serve.deployment(_Model, num_replicas=int(arguments.get("replicas", 1)))
    return deployment.bind(arguments["model"])


class _Model:
    def __init__(self, uri: str) -> None:
        self._model = mlflow.pyfunc.load_model(uri)

    async def __call__(self, request: Request) -> Any:
        body = await request.body()
        try:
            # In a thread, so that requests are accepted while the model computes.
            return JSONResponse(await asyncio.to_thread(self._answer, body))
        except _RequestTooLarge as error:
            return JSONResponse({"error": str(error)}, status_code=413)
        except (DataError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    def _answer(self, body: bytes) -> list[dict[str, Any]]:
        _check_size(len(body), MOST_BYTES, "bytes")
        message = json.loads(body)
        if isinstance(message, list):
            _check_size(len(message), MOST_EXAMPLES, "examples")
        return self._model.predict(message).to_dict("records")


class _RequestTooLarge(DataError):
    pass


def _check_size(size: int, most: int, unit: str) -> None:
    if size > most:
        raise _RequestTooLarge(
            f"expected at most {most:,} {unit}, found {size:,}; send several requests"
        )
