"""Screens of a run's pages at three widths: `make screens`.

python -m benchmarks.screens FOLDER

A page that is wider than its window is named, and the command then ends with status 1. Chromium is
asked over its debugging protocol, which says when a page is ready.
"""

import argparse
import asyncio
import base64
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from rungwise.core.stages.artifact import Artifact, list_artifacts
from rungwise.core.storage.folder import Folder

_WIDTHS = (1280, 500, 360)  # a laptop, half of its screen, a telephone
_SETTLED_SECONDS, _MOST_SECONDS = 3.0, 60.0
_WIDER = "Math.max(0, document.documentElement.scrollWidth - window.innerWidth)"


class Browser:
    """One tab of a Chromium that is driven over its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._sent = 0

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        await self._socket.send_json({"id": self._sent, "method": method, "params": parameters})
        while (answer := await self._socket.receive_json()).get("id") != self._sent:
            pass
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    async def value(self, script: str) -> Any:
        answer = await self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    async def picture(self, url: str, path: Path, width: int) -> int:
        """Write the whole page as it is once nothing changes any more; how many pixels it is wider
        than the window."""
        window = {"width": width, "height": 100, "deviceScaleFactor": 1, "mobile": False}
        await self.ask("Emulation.setDeviceMetricsOverride", **window)
        await self.ask("Page.navigate", url=url)
        shown, since, deadline = "", time.monotonic(), time.monotonic() + _MOST_SECONDS
        while time.monotonic() < min(deadline, since + _SETTLED_SECONDS):
            await asyncio.sleep(0.25)
            now = str(await self.value("document.body ? document.body.innerText : ''"))
            if now != shown:
                shown, since = now, time.monotonic()
        size = (await self.ask("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "scale": 1, "width": width, "height": size["height"]}
        shot = await self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return int(await self.value(_WIDER))


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        process = subprocess.Popen(
            ["chromium", *flags, "--remote-debugging-port=0", f"--user-data-dir={folder}"],
            stderr=subprocess.DEVNULL,
        )
        try:
            port_file = Path(folder, "DevToolsActivePort")
            while not port_file.exists() or not (lines := port_file.read_text().split()):
                assert process.poll() is None, "chromium does not start"
                await asyncio.sleep(0.1)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{lines[0]}") as session:
                async with session.put("/json/new?about:blank") as tab:
                    address = (await tab.json())["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as connected:
                    yield Browser(connected)
        finally:
            process.terminate()
            process.wait()


def newest(root: str, stage: str) -> Artifact | None:
    built = list_artifacts(Folder.at(root), stage)
    return max(built, key=lambda each: each.record["finished"], default=None)


async def screens(folder: Path, root: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    pages = [page for stage in ("report", "ladder") if (page := newest(root, stage))]
    assert pages, f"no page below {root}; run a recipe first"
    too_wide = 0
    async with browser() as chromium:
        for page in pages:
            file = Path(page.folder.path(page.record["summary"]["page"])).absolute()
            for width in _WIDTHS:
                path = folder / f"{page.stage}-{width}.png"
                wider = await chromium.picture(file.as_uri(), path, width)
                print(path, f"is {wider} pixels too wide" if wider else "", flush=True)
                too_wide += wider > 0
    return 1 if too_wide else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", default="artifacts")
    options = parser.parse_args()
    sys.exit(asyncio.run(screens(options.folder, options.root)))
