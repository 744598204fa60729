"""Screens of a finished run, to look at: `make screens`, or `python -m tests.screens FOLDER`.

    report and ladder page, at three widths ──┐
    MLflow's pages of the run and its model ──┼── Chromium ──> FOLDER/*.png
    terminals of 80 and 110 columns ── pyte ──┘

A page that is wider than its window is named, and the command then ends with status 1. Chromium is
asked over its debugging protocol, for MLflow's pages are ready when they say so and not before.
"""

import argparse
import asyncio
import base64
import contextlib
import fcntl
import html
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pyte
from mlflow import MlflowClient

from rungwise.core.stages.artifact import Artifact, list_artifacts
from rungwise.core.storage.folder import Folder

_WIDTHS = (1280, 500, 360)  # a laptop, half of its screen, a telephone
_MLFLOW, _TRAINING = (1440, 2000), "?workflowType=machine_learning"
_COLUMNS, _ROWS = (80, 110), 40
_SETTLED_SECONDS, _MOST_SECONDS = 3.0, 60.0
_COLOURS = {"default": "#d8dee9", "brown": "#ebcb8b", "blue": "#81a1c1", "red": "#e06c75"}
_STYLE = (
    "body{margin:0;padding:12px;background:#1e222a;color:#d8dee9;width:max-content}"
    "pre{margin:0;font:14px/1.25 'DejaVu Sans Mono',monospace}"
)
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

    async def picture(
        self, url: str, path: Path, width: int, height: int = 0, text: str = ""
    ) -> int:
        """Write the page as it is once `text` is there and nothing changes any more, as high as it
        is if no height is given; how many pixels it is wider than the window."""
        window = {"width": width, "height": height or 100, "deviceScaleFactor": 1, "mobile": False}
        await self.ask("Page.navigate", url="about:blank")  # another fragment loads nothing
        await self.ask("Emulation.setDeviceMetricsOverride", **window)
        await self.ask("Page.navigate", url=url)
        shown, since, deadline = "", time.monotonic(), time.monotonic() + _MOST_SECONDS
        while time.monotonic() < min(deadline, since + _SETTLED_SECONDS):
            await asyncio.sleep(0.25)
            now = str(await self.value("document.body ? document.body.innerText : ''"))
            if now != shown or text not in now:
                shown, since = now, time.monotonic()
        assert text in shown, f"{url} never showed {text!r}, but {shown[:500]!r}"
        size = (await self.ask("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "scale": 1}
        clip |= {"width": width or size["width"], "height": height or size["height"]}
        shot = await self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=not height)
        path.write_bytes(base64.b64decode(shot["data"]))
        return int(await self.value(_WIDER)) if width else 0


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


@contextlib.contextmanager
def mlflow_server(root: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{Path(root).absolute()}/mlflow.db"
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", store]
    command += ["--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            assert server.poll() is None, f"{' '.join(command)} has ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def mlflow_pages(root: str, report: Artifact) -> dict[str, tuple[str, str]]:
    """The paths of MLflow's pages of the run that has built `report`, each with a text on it."""
    client = MlflowClient(f"sqlite:///{Path(root).absolute()}/mlflow.db")
    [experiment] = client.search_experiments(filter_string="name = 'rungwise'")

    def found(tag: str, value: str) -> Any:
        runs = client.search_runs([experiment.experiment_id], f"tags.`{tag}` = '{value}'")
        return next(iter(runs), None)

    runs = f"/#/experiments/{experiment.experiment_id}/runs"
    whole = found("rungwise.report", report.fingerprint)
    run = f"{runs}/{whole.info.run_id}"
    pages = {
        "runs": (f"{runs}{_TRAINING}", "Run Name"),
        "run": (f"{run}{_TRAINING}", "Description"),
        "run-charts": (f"{run}/model-metrics{_TRAINING}", "Auto-refresh"),
        "run-page": (f"{run}/artifacts/report.html{_TRAINING}", "report_files"),
    }
    for title, fingerprint in whole.data.tags.items():
        stage = title.removeprefix("rungwise.").split("/")[0]
        if stage in ("pretrain", "sweep") and (built := found("rungwise.fingerprint", fingerprint)):
            page = f"{runs}/{built.info.run_id}/model-metrics{_TRAINING}"
            pages[f"{stage}-charts"] = (page, "Auto-refresh")
    for model in client.search_registered_models():
        page = f"/#/models/{model.name}"
        assert model.latest_versions
        version = model.latest_versions[0].version
        pages[f"model-{model.name}"] = (page, "Created Time")
        pages[f"version-{model.name}"] = (f"{page}/versions/{version}", "Source Run")
    return pages


def terminal(command: Sequence[str], columns: int) -> str:
    """The HTML of what a command shows in a terminal so wide, with what has been scrolled away."""
    screen = pyte.HistoryScreen(columns, _ROWS, history=10_000)
    stream = pyte.ByteStream(screen)
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        os.execvpe(command[0], list(command), os.environ | {"TERM": "xterm-256color"})
    with contextlib.suppress(OSError):  # the end, on Linux
        while data := os.read(master, 65536):
            stream.feed(data)
    os.waitpid(pid, 0)
    lines = [*screen.history.top, *(screen.buffer[row] for row in range(screen.cursor.y + 1))]
    rows = ["".join(_cell(line[column]) for column in range(columns)) for line in lines]
    typed = html.escape(f"$ rungwise {' '.join(command[3:])}")
    page = "\n".join([typed, *rows])
    return f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><pre>{page}</pre>"


def _cell(char: Any) -> str:
    colour = _COLOURS.get(char.fg, re.sub("^([0-9a-f]{6})$", r"#\1", char.fg))
    weight = ";font-weight:bold" if char.bold else ""
    return f"<span style='color:{colour}{weight}'>{html.escape(char.data)}</span>"


def newest(root: str, stage: str) -> Artifact | None:
    built = list_artifacts(Folder.at(root), stage)
    return max(built, key=lambda each: each.record["finished"], default=None)


async def screens(options: argparse.Namespace) -> int:
    out, root = options.folder, str(Path(options.root).absolute())
    out.mkdir(parents=True, exist_ok=True)
    report = newest(root, "report")
    assert report, f"no report below {root}; run a recipe first"
    too_wide: list[str] = []
    async with browser() as chromium:

        async def take(name: str, url: str, width: int, height: int = 0, text: str = "") -> None:
            wider = await chromium.picture(url, out / f"{name}.png", width, height, text)
            print(out / f"{name}.png", f"is {wider} pixels too wide" if wider else "", flush=True)
            too_wide.extend([name] * (wider > 0))

        for page in filter(None, (report, newest(root, "ladder"))):
            file = Path(page.folder.path(page.record["summary"]["page"])).absolute()
            for width in _WIDTHS:
                await take(f"{page.stage}-{width}", file.as_uri(), width)
        run = [
            "finetune",
            options.recipe,
            *[f"root={options.root}"] * (options.root != "artifacts"),
        ]
        for verb in ("plan", "run"):
            for columns in _COLUMNS:
                shown = terminal([sys.executable, "-m", "rungwise", verb, *run], columns)
                page = out / f"terminal-{verb}-{columns}.html"
                page.write_text(shown, "utf-8")
                await take(page.stem, page.absolute().as_uri(), 0)
                page.unlink()
        with mlflow_server(root) as address:
            for name, (path, text) in mlflow_pages(root, report).items():
                await take(f"mlflow-{name}", address + path, *_MLFLOW, text=text)
    return 1 if too_wide else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", default="artifacts")
    parser.add_argument("--recipe", default="quickstart", help="of the workflow finetune")
    sys.exit(asyncio.run(screens(parser.parse_args())))
