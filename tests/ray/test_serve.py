"""A registered model over HTTP: MLflow's pyfunc and a real Ray Serve, asked as `predict` is."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from ray import serve

from rungwise.__main__ import main
from rungwise.cluster.session import session
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from rungwise.serving import served_model
from rungwise.serving.predictor import FILES
from rungwise.serving.ray_serve import application
from tests.conftest import find_port
from tests.unit.serving.test_predictor import make_model
from tests.waiting import is_healthy, wait_until

TEXTS = [f"w{n} w{n * 7 % 40} w{n * 3 % 30}" for n in range(10)]


def ask(address: str, body: Any) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@contextlib.contextmanager
def served_by_mlflow(model: Path) -> Iterator[str]:
    """The address at which MLflow's own server answers for a saved model."""
    port = find_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(model)]
    command += ["--env-manager", "local", "--port", str(port)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of uvicorn
    server = subprocess.Popen(command, start_new_session=True, env=os.environ | {"PATH": path})
    try:
        wait_until("MLflow", lambda: is_healthy(f"http://127.0.0.1:{port}"))
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


@pytest.mark.slow
def test_mlflow_and_ray_serve_answer_as_predict_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    model, saved = tmp_path / "model", tmp_path / "saved"
    model.mkdir()
    make_model(model, "classification", "mlm_nsp")
    (tmp_path / "asked.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    assert main(["predict", str(model), "--input", str(tmp_path / "asked.txt")]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    artifacts.finish(Folder.at(model), {"stage": "served", "fingerprint": "f" * 12}, {})
    files = {name: str(model / name) for name in (*FILES, artifacts.RECORD)}
    mlflow.pyfunc.save_model(
        saved,
        python_model=served_model.__file__,
        artifacts={"description": files.pop("model.json"), **files},
        pip_requirements=["torch"],
    )
    loaded = mlflow.pyfunc.load_model(str(saved))
    by_mlflow = loaded.predict(TEXTS).to_dict("records")
    many = TEXTS * 100
    with served_by_mlflow(saved) as address:
        status, accepted = ask(address, {"inputs": many})
        too_many = ask(address, {"inputs": [*many, "w1"]})
        too_long = ask(address, {"inputs": ["w1 " * 400_000]})
    assert (status, len(accepted["predictions"])) == (200, 1000)
    assert too_many[0] == too_long[0] == 400
    assert "expected at most 1,048,576 bytes" in too_long[1]["message"]
    assert "expected at most 1,000 examples, found 1,001" in too_many[1]["message"]
    assert len(loaded.predict([*many, "w1"])) == 1001, "there is no limit but a server's"

    port = find_port()
    address = f"http://127.0.0.1:{port}"
    with session(ComputeConfig()):
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        try:
            serve.run(application({"model": str(saved)}))
            status, by_ray = ask(address, TEXTS)
            [alone] = ask(address, TEXTS[0])[1]
            refused = ask(address, [{"text": "w5"}, {"second": "w6"}])
        finally:
            serve.shutdown()
    assert status == 200
    for answers in (by_mlflow, by_ray, [alone, *by_ray[1:]]):
        for answer, known in zip(answers, expected, strict=True):
            assert answer["label"] == known["label"]
            assert answer["probability"] == pytest.approx(known["probability"], abs=1e-5)
    message = "input 2: text is missing; this model needs text, found second"
    assert refused == (400, {"error": message})
