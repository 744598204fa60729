"""Follow a job's output until it ends, even if connections break.

Every connection receives the text from its beginning, so the number of characters printed tells
where a new connection has to continue.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import aiohttp
from ray.job_submission import JobDetails

from rungwise.core.errors import UserError
from rungwise.submission.connection import Client, UnreachableError

# A connection is dead if nothing arrives for this long, not even the answer to a ping.
_HEARTBEAT_SECONDS = 20.0
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 15.0
# How long to wait without any answer: longer than a laptop sleeps, not for ever for a dead cluster.
PATIENCE_SECONDS = 1800.0

Write = Callable[[str], None]


class Follower:
    """Writes one job's output, each character once, reconnecting as often as necessary."""

    def __init__(self, client: Client, job: str, write: Write, say: Write) -> None:
        self._client = client
        self._job = job
        self._write = write
        self._say = say  # messages about the connection, not from the job
        self._printed = 0
        self._lost = False

    def follow(self) -> JobDetails:
        """Return when the job has ended and all of its output is written. Raises UnreachableError
        after PATIENCE_SECONDS without an answer, UserError if the cluster no longer knows the job
        or refuses the token. KeyboardInterrupt does not stop the job."""
        wait, last_answer = _FIRST_WAIT_SECONDS, time.monotonic()
        while True:
            before = self._printed
            with contextlib.suppress(aiohttp.ClientError, OSError):
                asyncio.run(self._stream())
            try:
                details = self._client.get_details(self._job)
                self._report_reconnection()
                if details.status.is_terminal():
                    self._finish()
                    return details
                last_answer = time.monotonic()
            except UnreachableError:
                if time.monotonic() - last_answer > PATIENCE_SECONDS:
                    raise
                if not self._lost:
                    self._say("the connection is lost, the job goes on; trying again")
                self._lost = True
            wait = _FIRST_WAIT_SECONDS if self._printed > before else wait
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _stream(self) -> None:
        """Write what one connection delivers until it closes."""
        server, position = self._client.server, 0
        url = f"{server.address}/api/jobs/{self._job}/logs/tail"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_HEARTBEAT_SECONDS)
        async with (
            aiohttp.ClientSession(headers=server.headers, timeout=timeout) as session,
            session.ws_connect(url, heartbeat=_HEARTBEAT_SECONDS, max_msg_size=0) as socket,
        ):
            self._report_reconnection()
            async for message in socket:
                if message.type != aiohttp.WSMsgType.TEXT:
                    return
                self._write_rest(message.data, position)
                position += len(message.data)

    def _report_reconnection(self) -> None:
        if self._lost:
            self._say("connected again")
        self._lost = False

    def _finish(self) -> None:
        """Write the rest of the output, in case the last connection broke as the job ended."""
        try:
            text = self._client.get_job_logs(self._job)
        except UnreachableError:
            raise
        except UserError:
            self._say("the rest of the output cannot be read")
            return
        self._write_rest(text, 0)

    def _write_rest(self, text: str, position: int) -> None:
        """Write the new part of `text`, which begins at `position` in the output."""
        rest = text[max(0, self._printed - position) :]
        if rest:
            self._write(rest)
            self._printed += len(rest)
