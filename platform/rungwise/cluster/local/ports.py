"""Free ports for a cluster. Ray listens on every interface, so a port has to be free on all."""

from __future__ import annotations

import contextlib
import random
import socket

from rungwise.core.errors import UserError

# Below the kernel's ephemeral ports (from 32768 on Linux), so that no process started meanwhile is
# given one of them.
_QUIET = range(20000, 32000)
_NEIGHBOURS = 100


class Ports:
    """Gives out ports that nothing listens on, each once."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def wanted(self, port: int, option: str) -> int:
        """Take exactly this port. Raises UserError if it is taken."""
        if not 1024 <= port <= 65535:
            raise UserError(f"{option} is {port}; expected a port from 1024 to 65535")
        if port in self._given or not is_free(port):
            raise UserError(f"port {port} is taken; choose another with {option}, or leave it out")
        self._given.add(port)
        return port

    def near(self, port: int) -> int:
        """Take this port, or the next free one above it."""
        for candidate in range(port, min(port + _NEIGHBOURS, 65536)):
            if candidate not in self._given and is_free(candidate):
                self._given.add(candidate)
                return candidate
        raise UserError(f"no port is free from {port} to {port + _NEIGHBOURS - 1} on this machine")

    def any(self) -> int:
        """Take a free port in a range that no common server uses."""
        return self.near(random.choice(_QUIET))


def is_free(port: int) -> bool:
    """True if nothing listens on `port` on any interface."""
    return can_bind("0.0.0.0", port)


def can_bind(address: str, port: int = 0) -> bool:
    """True if a server can listen: the address is this machine's, and the port is free."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        # As servers do: connections of one that has ended do not hold its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        return True
    return False
