"""A registered model as an application of Ray Serve, for more than one machine.

    serve run rungwise.serving.ray_serve:application model=models:/NAME@champion replicas=2

The registry is that of MLFLOW_TRACKING_URI. A POST of a text, an object with named values or a list
of these, as JSON, gets a list of answers as `rungwise predict` gives them. A fault in what was sent
has the status 400.
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


def application(arguments: dict[str, str]) -> Application:
    """Build the application from `model`, the URI of a model in MLflow, and `replicas`."""
    deployment: Any = serve.deployment(_Model, num_replicas=int(arguments.get("replicas", 1)))
    return deployment.bind(arguments["model"])


class _Model:
    def __init__(self, uri: str) -> None:
        self._model = mlflow.pyfunc.load_model(uri)

    async def __call__(self, request: Request) -> Any:
        try:
            # In a thread, so that requests are accepted while the model computes.
            answers = await asyncio.to_thread(self._model.predict, json.loads(await request.body()))
        except (DataError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse(answers.to_dict("records"))
