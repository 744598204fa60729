"""MLflow's server on a real PostgreSQL, with artifacts in S3, away for a part of a run."""

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import s3fs
from mlflow import MlflowClient

from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe
from tests.waiting import wait_until

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
    postgresql: str, bucket: str, tmp_path: Path, free_ports: list[int]
) -> None:
    address = f"http://127.0.0.1:{free_ports[0]}"
    server = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", postgresql]
    server += ["--artifacts-destination", f"{bucket}/mlflow", "--host", "127.0.0.1"]
    server += ["--port", str(free_ports[0]), "--workers", "1"]

    def answers() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health") as reply:
            return reply.status == 200
        return False

    root = tmp_path / "root"
    corpus = write_corpus(tmp_path / "text", documents=30)
    recipe = small_recipe(root, corpus, tracking={"uri": address})
    config = write_recipe(tmp_path / "recipe.yaml", recipe)
    rungwise = [sys.executable, "-m", "rungwise"]
    run = subprocess.Popen(
        [*rungwise, "run", "pretrain", str(config)],
        cwd=REPOSITORY,
        env=os.environ | {"COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        with process(server):
            wait_until("MLflow", answers)
            wait_until("a corpus", lambda: any(root.glob("corpus/*/artifact.json")))
            wait_until("runs of MLflow", lambda: runs(address))
        out, _ = run.communicate(timeout=400)
    assert run.returncode == 0, out
    [line] = [line for line in out.splitlines() if line.startswith("send ")]
    assert "events that did not reach" in out

    with process(server):
        wait_until("MLflow", answers)
        before = runs(address)
        assert not all(status == "FINISHED" for _, status in before), "it died too late"
        printed = shlex.split(line.removeprefix("send "))
        assert printed[0] == "rungwise"
        for is_first in (True, False):
            done = subprocess.run(
                [*rungwise, *printed[1:]],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                check=True,
            )
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
