"""The service on Ray Serve: one replica that batches examples across requests."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder
from rungwise.serving.pretrained import load_predictor
from rungwise.serving.service import Answer, Request, Service
from rungwise.tasks.kinds.examples import Example

_NAME = "rungwise"
_BATCH_EXAMPLES = 64
_WAIT_SECONDS = 0.005  # how long the first example of a batch waits for others
_REQUESTS = 1024  # at once; more wait in the proxy


def import_serve() -> Any:
    """Ray Serve. Raises UserError where the extra is not installed."""
    try:
        from ray import serve
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'rungwise[serve]'") from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return serve


@contextlib.contextmanager
def serving(model: Folder, host: str, port: int, names: Sequence[str]) -> Iterator[None]:
    """Serve the model in a folder on the running Ray for the duration of the block; `names` are
    those that a request may call the server by."""
    serve = import_serve()

    @serve.deployment(max_ongoing_requests=_REQUESTS)
    class Model:
        def __init__(self, uri: str) -> None:
            self._service = Service(load_predictor(Folder.at(uri)), names)

        @serve.batch(max_batch_size=_BATCH_EXAMPLES, batch_wait_timeout_s=_WAIT_SECONDS)
        async def _ask(self, examples: list[Example]) -> list[Answer]:
            # In a thread, so that requests are accepted while the model computes.
            return await asyncio.to_thread(self._service.answer_examples, examples)

        async def __call__(self, request: Any) -> Any:
            from starlette.responses import Response

            headers, path = dict(request.headers), request.url.path
            own = Request(request.method, path, headers, request.stream())
            reply = await self._service.handle(self._ask, own)
            return Response(reply.body, reply.status, media_type=reply.media_type)

    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
    cpus = ray.cluster_resources()["CPU"]  # all, since PyTorch uses them as threads
    application = Model.options(ray_actor_options={"num_cpus": cpus}).bind(model.uri)
    try:
        serve.run(application, name=_NAME)
        yield
    finally:
        serve.delete(_NAME)  # pending requests are answered first; Serve itself ends with Ray
