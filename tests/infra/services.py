"""What AWS gives the machines of a test: `python -m tests.infra.services FOLDER`, in their network.

There is no AWS here, so these stand in for it:
- the instance metadata service, version 2: sessions by PUT, no answer without one. What it says to
  a machine lies in FOLDER/<address>/ as files, so a test announces an interruption by writing one;
- moto's server for S3, Secrets Manager and autoscaling groups. It takes any signature.
"""

import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.infra.machines import METADATA, SERVICES

AWS_PORT = 4566
AWS = f"http://{SERVICES}:{AWS_PORT}"
_PREFIX = "/latest/meta-data/"


def metadata_server(folder: Path, address: str, port: int) -> ThreadingHTTPServer:
    """The metadata service of all machines; it knows them by their addresses."""
    sessions: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            if self.path != "/latest/api/token" or seconds is None:
                return self._answer(400)
            session = secrets.token_hex(16)
            sessions.add(session)
            return self._answer(200, session)

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") not in sessions:
                return self._answer(401)
            if not self.path.startswith(_PREFIX):
                return self._answer(404)
            place = folder / self.client_address[0] / self.path.removeprefix(_PREFIX)
            if place.is_dir():
                return self._answer(200, "\n".join(sorted(entry.name for entry in place.iterdir())))
            if not place.is_file():
                return self._answer(404)
            return self._answer(200, place.read_text())

        def _answer(self, status: int, text: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    return ThreadingHTTPServer((address, port), Handler)


if __name__ == "__main__":
    from moto.server import ThreadedMotoServer

    server = metadata_server(Path(sys.argv[1]), METADATA, 80)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    aws = ThreadedMotoServer(ip_address=SERVICES, port=AWS_PORT, verbose=False)
    aws.start()
    print("ready", flush=True)
    threading.Event().wait()
