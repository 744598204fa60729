"""One live line a stage on a terminal; plain lines, one an event, everywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_PLAIN_EVERY_SECONDS = 10.0
_STYLES = {
    "waiting": "dim",
    "running": "bold cyan",
    "done": "green",
    "cached": "blue",
    "failed": "bold red",
    "not built": "red",
}


@dataclass
class _Line:
    name: str
    state: str = "waiting"
    started: float = 0.0
    seconds: float = 0.0
    done: float = 0.0
    total: float = 0.0
    shown: dict[str, float | str] = field(default_factory=dict)
    text: str = ""
    # Where this attempt began, so that a resumed one estimates well.
    first_done: float | None = None
    first_time: float = 0.0
    last_plain: float = 0.0


class Display:
    """Shows the stages of one run. Use as a context manager; all methods are cheap."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self._console = console
        self._lines = {name: _Line(name) for name in names}
        self._notes: list[str] = []
        self._live = (
            Live(get_renderable=self._table, console=console, refresh_per_second=4, transient=False)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, name: str, state: str, text: str) -> None:
        """Set the state of a stage; the time stops with one that ran."""
        line = self._lines[name]
        if (line.state, line.text) != (state, text):
            line.seconds = self._seconds(line)
            line.state, line.text = state, text
            self._plain(line)

    def start(self, name: str, reason: str) -> None:
        self._lines[name].started = time.monotonic()
        self.show(name, "running", reason)

    def progress(self, name: str, done: float, total: float, shown: dict[str, float | str]) -> None:
        line = self._lines[name]
        now = time.monotonic()
        line.done, line.total, line.shown, line.text = done, total, shown, ""
        if line.first_done is None:
            line.first_done, line.first_time = done, now
        if self._live is None and now - line.last_plain >= _PLAIN_EVERY_SECONDS:
            self._plain(line)

    def note(self, name: str, message: str) -> None:
        self._notes.append(f"{name}: {message}")
        if self._live is None:
            self._console.print(f"{name:<12} note     {message}", markup=False, highlight=False)

    def _plain(self, line: _Line) -> None:
        line.last_plain = time.monotonic()
        if self._live is None:
            parts = [f"{line.name:<12} {line.state:<8}", _clock(self._seconds(line)), _detail(line)]
            self._console.print(
                " ".join(part for part in parts if part),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def _seconds(self, line: _Line) -> float:
        return time.monotonic() - line.started if line.state == "running" else line.seconds

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for justify in ("left", "left", "right", "left"):
            table.add_column(no_wrap=True, justify=justify)
        table.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
        for line in self._lines.values():
            bar = (
                ProgressBar(total=line.total, completed=line.done, width=16)
                if line.state == "running" and line.total
                else ""
            )
            seconds = self._seconds(line)
            table.add_row(
                line.name,
                Text(line.state, style=_STYLES[line.state]),
                _clock(seconds) if seconds else "",
                bar,
                Text(_detail(line)),
            )
        for note in self._notes[-4:]:
            table.add_row("", Text("note", style="yellow"), "", "", Text(note))
        return table


def _detail(line: _Line) -> str:
    if line.state != "running" or not line.total:
        return line.text
    parts = [f"{line.done:,.0f}/{line.total:,.0f}"]
    parts += [f"{key} {_number(value)}" for key, value in line.shown.items()]
    moved = line.done - (line.first_done or 0.0)
    if moved > 0:
        left = (time.monotonic() - line.first_time) / moved * (line.total - line.done)
        parts.append(f"{_clock(left)} left")
    return "  ".join(parts)


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _clock(seconds: float) -> str:
    if seconds < 0:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
