"""A server of files on loopback, with ranges, that can be made to fail."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, dict[str, str], bytes]


@dataclass
class FileServer:
    """`find` returns the bytes at a path, None if there are none. `cuts` are, one a request, the
    bytes after which the connection ends; `ranges` is whether it knows them."""

    find: Callable[[str], bytes | None]
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)  # path, range

    def reply(self, path: str, headers: dict[str, str]) -> Reply:
        data = self.find(path)
        if data is None:
            return 404, {}, b""
        begin = (
            re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range", "")) if self.ranges else None
        )
        if begin is None:
            return 200, {}, data
        if int(begin[1]) >= len(data):
            return 416, {}, b""
        end = int(begin[2]) + 1 if begin[2] else len(data)
        part = data[int(begin[1]) : end]
        place = f"bytes {begin[1]}-{int(begin[1]) + len(part) - 1}/{len(data)}"
        return 206, {"Content-Range": place}, part


@contextlib.contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    """Serve on a free port of loopback; sets the server's `url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, body: bool) -> None:
            headers = {name.title(): value for name, value in self.headers.items()}
            server.requests.append((self.path, headers.get("Range", "")))
            status, more, data = server.reply(self.path, headers)
            self.send_response(status)
            always = {"Content-Length": str(len(data)), "Connection": "close"}
            for name, value in {**always, **more}.items():
                self.send_header(name, value)
            self.end_headers()
            if not body:
                return
            cut = server.cuts.pop(0) if server.cuts else len(data)
            self.wfile.write(data[:cut])
            if cut < len(data):
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield server
        listening.shutdown()
        thread.join()
