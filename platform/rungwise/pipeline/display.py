"""The display of a run: one live line per stage on a terminal, else one plain line per event. A
narrow terminal cuts only long text, and that only until the end."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rungwise.core.configuration.secrecy import redact
from rungwise.pipeline.estimate import RunForecast, describe_seconds, find_factor

_PLAIN_EVERY_SECONDS = 10.0
_NARROW = 100  # columns; the bar is shorter on narrower terminals
_STYLES = {
    "waiting": "dim",
    "running": "bold cyan",
    "done": "green",
    "cached": "cyan",
    "failed": "bold red",
    "not built": "red",
}


@dataclass
class _Line:
    name: str
    state: str = "waiting"
    started: float = 0.0
    seconds: float = 0.0
    position: float = 0.0  # in units of `total`
    total: float = 0.0
    values: dict[str, float | str] = field(default_factory=dict)  # beside the position: loss, ...
    text: str = ""
    # Where this attempt began, so that a resumed stage estimates its remaining time correctly.
    first_position: float | None = None
    first_time: float = 0.0
    last_plain: float = 0.0


class Display:
    """Shows the stages of one run. Use as a context manager; all methods are cheap."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self._console = console
        self._lines = {name: _Line(name) for name in names}
        self._notes: list[str] = []
        self._doing = ""  # what the run does before its first stage starts
        self._ended = False
        self._estimate: RunForecast | None = None
        self._live = (
            Live(get_renderable=self._table, console=console, refresh_per_second=4, transient=False)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        if self._live:
            self._live.stop()

    def expect(self, estimate: RunForecast) -> None:
        """Count down the whole run by an estimate of its stages."""
        self._estimate = estimate
        self._print(f"expected: {estimate.line}")

    def add(self, names: Sequence[str]) -> None:
        """Show further stages, behind the others."""
        self._lines |= {name: _Line(name) for name in names}

    def show(self, name: str, state: str, text: str) -> None:
        """Set the state of a stage; a running stage's clock stops when its state changes."""
        line, text = self._lines[name], redact(text)
        if (line.state, line.text) != (state, text):
            line.seconds = self._seconds(line)
            line.state, line.text = state, text
            self._plain(line)
            if state == "done" and (left := self._left()):
                self._print(left)

    @property
    def states(self) -> dict[str, str]:
        return {name: line.state for name, line in self._lines.items()}

    def announce(self, doing: str) -> None:
        """Say what the run does until its first stage starts."""
        self._doing = doing
        self._print(doing)

    def start(self, name: str, reason: str) -> None:
        self._doing = ""
        self._lines[name].started = time.monotonic()
        self.show(name, "running", reason)

    def progress(
        self, name: str, position: float, total: float, values: dict[str, float | str]
    ) -> None:
        line = self._lines[name]
        now = time.monotonic()
        if line.first_position is None or (values and values.keys() != line.values.keys()):
            line.first_position, line.first_time = position, now  # earlier time was start-up
        line.position, line.total, line.text = position, total, ""
        line.values = values or line.values
        if self._live is None and now - line.last_plain >= _PLAIN_EVERY_SECONDS:
            self._plain(line)

    def note(self, name: str, message: str) -> None:
        message = redact(message)
        self._notes.append(f"{name}: {message}")
        self._print(f"{name:<12} note     {message}")

    def _plain(self, line: _Line) -> None:
        line.last_plain = time.monotonic()
        parts = [f"{line.name:<12} {line.state:<8}", _clock(self._seconds(line)), _detail(line)]
        self._print(" ".join(part for part in parts if part))

    def _print(self, text: str) -> None:
        if self._live is None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _seconds(self, line: _Line) -> float:
        return time.monotonic() - line.started if line.state == "running" else line.seconds

    def _left(self) -> str:
        """How long the rest of the run takes, by what the ended stages took against what was
        expected of them; a running stage that counts its own work knows better."""
        if self._estimate is None:
            return ""
        expected = self._estimate.seconds
        ended = [line for line in self._lines.values() if line.state == "done"]
        factor = find_factor([(line.seconds, expected.get(line.name) or 0.0) for line in ended])
        left: dict[str, float | None] = {}
        for line in self._lines.values():
            if line.state not in ("waiting", "running") or line.name not in expected:
                continue
            own = _seconds_left(line) if line.state == "running" else None
            seconds = expected[line.name]
            if own is None and seconds is not None:
                own = max(0.0, seconds * factor - self._seconds(line))
            left[line.name] = own
        if not left:
            return ""
        unknown = "more than " * (None in left.values())
        return f"{unknown}{describe_seconds(self._estimate.wall_seconds(left))} left of the run"

    def _table(self) -> Group:
        table = Table.grid(padding=(0, 1), expand=True)
        for justify in ("left", "left", "right", "left"):
            table.add_column(no_wrap=True, justify=justify)
        table.add_column(ratio=1)  # the only column that rich may narrow
        width = 8 if self._console.width < _NARROW else 16
        for line in self._lines.values():
            bar = (
                ProgressBar(total=line.total, completed=line.position, width=width)
                if line.state == "running" and line.total
                else ""
            )
            seconds = self._seconds(line)
            detail = Text(_detail(line), no_wrap=True, overflow="ellipsis")
            if self._ended:
                detail.no_wrap, detail.overflow = False, "fold"
            table.add_row(
                line.name,
                Text(line.state, style=_STYLES[line.state]),
                _clock(seconds) if seconds else "",
                bar,
                detail,
            )
        doing = [Text(self._doing, "dim")] if self._doing and not self._ended else []
        if not self._ended and (left := self._left()):
            doing.append(Text(left, "dim"))
        notes = [Text.assemble(("note ", "yellow"), note) for note in self._notes[-4:]]
        return Group(table, *doing, *notes)


def _detail(line: _Line) -> str:
    """Progress of a running stage, with the remaining time before anything that may be cut off."""
    if line.state != "running" or not line.total:
        return line.text
    parts = [f"{key} {_number(value)}" for key, value in line.values.items()]
    if (seconds := _seconds_left(line)) is not None:
        parts.insert(1, f"{_clock(seconds)} left")
    return "  ".join([f"{line.position:,.0f}/{line.total:,.0f}", *parts])


def _seconds_left(line: _Line) -> float | None:
    """Seconds until a running stage has done its work; None before it counts it."""
    progress = line.position - (line.first_position or 0.0)
    if progress <= 0 or not line.total:
        return None
    remainder = max(0.0, line.total - line.position)  # a last step may pass a budget of tokens
    return (time.monotonic() - line.first_time) / progress * remainder


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    whole = math.isfinite(value) and (abs(value) >= 1000 or value == int(value))
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
