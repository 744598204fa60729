"""`rungwise serve MODEL`: give the answers of `rungwise predict` over HTTP, until Ctrl-C."""

import argparse
import json
import os
import shlex
import signal
import socket

from rungwise.commands.arguments import Commands, add_served_model, add_verb, port_number
from rungwise.core.errors import UserError


def add(commands: Commands) -> None:
    parser = add_verb(commands, serve, "serve a model over HTTP until Ctrl-C")
    add_served_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; default: loopback")
    parser.add_argument("--port", type=port_number, default=0, help="default: a free port")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that requests may call this machine by, such as a proxy's; may be repeated",
    )


def serve(options: argparse.Namespace) -> None:
    """Serve from this machine until Ctrl-C or SIGTERM. Raises UserError if the port is taken, the
    extra is not installed, or RAY_ADDRESS names a cluster."""
    from rungwise.core.console import plain_console

    if address := os.environ.get("RAY_ADDRESS"):
        raise UserError(f"serve runs on this machine, but RAY_ADDRESS is {address}; unset it")
    say = plain_console().print
    port = _free_port(options.host, options.port)
    address = f"http://{_place(options.host, port)}"
    say(f"loading {options.model}, to listen on {address}")  # before torch is, which takes seconds

    from rungwise.cluster.session import session
    from rungwise.core.configuration.compute import ComputeConfig
    from rungwise.pipeline.loading import find_served
    from rungwise.serving import ray_serve
    from rungwise.serving.pretrained import load_predictor

    ray_serve.import_serve()
    folder = find_served(options.model, options.root)
    example = json.dumps(load_predictor(folder).example)  # report a bad model before Ray starts
    names = (options.host, socket.gethostname(), *options.allow_host)
    try:
        with session(ComputeConfig()), ray_serve.serving(folder, options.host, port, names):
            say(f"{options.model} on {address}  (Ctrl-C stops it; also /health, /metrics)")
            header = "-H 'content-type: application/json'"
            say(f"  curl {address}/predict {header} -d {shlex.quote(example)}")
            while True:
                signal.pause()
    except KeyboardInterrupt:
        say("stopped")


def _free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises UserError if it cannot listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as probe:
            return probe.getsockname()[1]
    except OSError as error:
        raise UserError(
            f"cannot listen on {_place(host, port)} ({error.strerror}); choose another --host or "
            "--port"
        ) from error


def _place(host: str, port: int) -> str:
    """`127.0.0.1:8000`, `[::1]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
