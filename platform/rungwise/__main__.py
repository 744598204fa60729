"""The command line: `rungwise VERB ...`; the files of commands/ define the verbs."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # that of typing, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; return the exit status (core/exit_codes.py). Until it runs, Ctrl-C
    ends the process at once: an exception would show where in its imports Python was."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else the process ignores it, or has its own
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        from rungwise.cluster.environment import set_environment, spare_collections
        from rungwise.commands.parser import parse
        from rungwise.core.exit_codes import run_command

        spare_collections()
        options = parse(sys.argv[1:] if arguments is None else arguments)
        set_environment()

        def command() -> int | None:
            signal.signal(signal.SIGINT, handler)
            return options.command(options)

        return run_command(command)
    finally:
        signal.signal(signal.SIGINT, handler)


if __name__ == "__main__":
    sys.exit(main())
