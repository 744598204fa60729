"""A stand-in for the job server of a Ray cluster, with the routes that a submission needs."""

import asyncio
import contextlib
import platform
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from aiohttp import web

TOKEN = "planted-token-7c1f"


@dataclass
class JobServer:
    """What it answers, and what it was sent. `cuts` are where connections for logs break."""

    address: str = ""
    token: str | None = TOKEN
    ray_version: str = ray.__version__
    python_version: str = platform.python_version()
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    not_yet: int = 0  # so many submissions are turned away, as by a head that has just started
    output: str = ""
    cuts: list[int] = field(default_factory=list)
    packages: dict[str, bytes] = field(default_factory=dict)
    submitted: list[dict[str, Any]] = field(default_factory=list)

    def job(self, name: str, status: str, **more: Any) -> None:
        """Let there be a job."""
        self.jobs[name] = {
            "type": "SUBMISSION",
            "submission_id": name,
            "status": status,
            "entrypoint": "python workflows/pretrain.py small.yaml",
            "start_time": 1000 + len(self.jobs),
            "end_time": None if status in ("PENDING", "RUNNING") else 61_000,
            "metadata": {},
            "runtime_env": {"working_dir": "gcs://_ray_pkg_0.zip"},
            "driver_exit_code": 1 if status == "FAILED" else None,
        } | more

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        if self.token is not None and given != f"Bearer {self.token}":
            return web.Response(status=403 if given else 401, text="no")
        parts = request.path.strip("/").split("/")[1:]
        if parts == ["version"]:
            return web.json_response({"version": "4", "ray_version": self.ray_version})
        if parts == ["v0", "cluster_metadata"]:
            versions = {"rayVersion": self.ray_version, "pythonVersion": self.python_version}
            return web.json_response({"data": versions})
        if parts[0] == "packages":
            return await self._package(request, parts[2])
        if parts == ["jobs"] and request.method == "POST":
            return await self._submit(request)
        if parts == ["jobs"]:
            return web.json_response(list(self.jobs.values()))
        if parts[1] not in self.jobs:
            return web.Response(status=404, text="no such job")
        if parts[2:] == ["logs"]:
            return web.json_response({"logs": self.output})
        if parts[2:] == ["logs", "tail"]:
            return await self._tail(request)
        return web.json_response(self.jobs[parts[1]])

    async def _package(self, request: web.Request, name: str) -> web.Response:
        if request.method == "PUT":
            self.packages[name] = await request.read()
        return web.Response(status=200 if name in self.packages else 404)

    async def _submit(self, request: web.Request) -> web.Response:
        if self.not_yet:
            self.not_yet -= 1
            text = "No available agent to submit job, please try again later."
            return web.Response(status=500, text=text)
        sent = await request.json()
        self.submitted.append(sent)
        more = {name: sent[name] for name in ("entrypoint", "metadata", "runtime_env")}
        self.job(sent["submission_id"], "SUCCEEDED", **more)
        return web.json_response(
            {"job_id": sent["submission_id"], "submission_id": sent["submission_id"]}
        )

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        length = self.cuts.pop(0) if self.cuts else len(self.output)
        for start in range(0, length, 7):
            await socket.send_str(self.output[start : min(start + 7, length)])
        if length < len(self.output) and request.transport is not None:
            request.transport.abort()
        return socket


@contextlib.contextmanager
def job_server() -> Iterator[JobServer]:
    """One on loopback for the time of the block."""
    server, loop = JobServer(), asyncio.new_event_loop()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{rest:.*}", server._answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.address = f"http://{host}:{port}"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
