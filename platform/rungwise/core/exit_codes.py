"""How every command ends: an exit status, and one line for an error that the user can fix."""

import contextlib
import errno
import logging
import os
import select
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.table import Table

from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import DISK_IS_FULL, NOT_WRITABLE, StageFailed, UserError

OK, FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130
_OF_A_PLACE = {*DISK_IS_FULL, *NOT_WRITABLE, errno.ENAMETOOLONG, errno.EISDIR}


def run_command(command: Callable[[], int | None]) -> int:
    """Run `command`; a UserError, or an error of a named place, prints one line and gives status 2.
    Secrets are cut."""
    sys.excepthook = _print_bug
    if logging.lastResort is not None:  # prints the warnings of libraries
        logging.lastResort.setFormatter(_Redacting())
    errors = plain_console(stderr=True)
    try:
        status = command()
        sys.stdout.flush()
        return status or OK
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        return OK
    except SystemExit as error:
        # Rich exits with 1 for the same reason, and leads stdout nowhere.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return OK
    except (UserError, StageFailed) as error:
        message = redact(f"error: {error}")
        errors.print(message, style="bold red")
        if isinstance(error, UserError):
            return USER_ERROR
        cause = redact(str(error.__cause__ or "").rstrip())
        if cause and cause not in message:
            errors.print(cause, style="dim")
        errors.print("Finished stages are kept; run the same command again to go on.")
        return FAILED
    except OSError as error:
        if error.errno not in _OF_A_PLACE or not error.filename:
            raise
        message = redact(f"error: cannot use {error.filename}: {error.strerror}")
        errors.print(message, style="bold red")
        return USER_ERROR
    except KeyboardInterrupt:
        program = Path(sys.argv[0])
        is_ours = program.name in ("rungwise", "__main__.py")
        command_line = ["rungwise"] if is_ours else ["python", str(program)]
        errors.print(
            "interrupted; what is finished or saved is kept, and the same command goes on:"
        )
        errors.print(f"  {redact(shlex.join([*command_line, *sys.argv[1:]]))}")
        return INTERRUPTED


class _Redacting(logging.Formatter):
    """A line of a log without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _print_bug(kind: type[BaseException], bug: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an error that is not expected, without secrets."""
    lines = traceback.format_exception(kind, bug, trace)
    sys.stderr.write(redact("".join(lines)))


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Make SIGTERM, which stops a job, end a run as Ctrl-C does: runs closed, state kept."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _reader_has_gone() -> bool:
    """Whether what stdout is piped to, such as `head`, has ended; stdout then leads nowhere."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors and a closed other end are always told
    if not poll.poll(0):
        return False
    # Else the interpreter would complain at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def plain_console(stderr: bool = False) -> Console:
    """Print lines as they are: no markup, no colours by content, no line breaks but their own."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


_LOG_WIDTH = 1000


def print_table(table: Table, console: Console) -> None:
    """Print a table as wide as the terminal; a log has room for whole lines."""
    screen = console if console.is_terminal else Console(file=console.file, width=_LOG_WIDTH)
    screen.print(table, soft_wrap=False)
