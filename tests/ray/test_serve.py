"""`rungwise serve` as a user runs it: a real Ray Serve, asked, and ended by Ctrl-C."""

import errno
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from rungwise.__main__ import main
from rungwise.pretraining.proof_process import kill_with_children
from tests.conftest import REPOSITORY
from tests.unit.test_predictor import load_served, make_model

TEXTS = [f"w{n} w{n * 7 % 40} w{n * 3 % 30}" for n in range(40)]


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "classification", "mlm_nsp")
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    assert main(["serve", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'rungwise[serve]'")


def test_a_taken_port_and_a_cluster_of_others_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "classification", "mlm_nsp")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tmp_path), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert main(["serve", str(tmp_path)]) == 2
    assert "RAY_ADDRESS is 10.0.0.1:6379; unset it" in capsys.readouterr().err


def test_an_ipv6_address_is_in_brackets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "classification", "mlm_nsp")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def taken(place: tuple[str, int], *, family: socket.AddressFamily) -> None:
        assert (place, family) == (("::1", 8000), socket.AF_INET6)
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(socket, "create_server", taken)
    assert main(["serve", str(tmp_path), "--host", "::1", "--port", "8000"]) == 2
    assert "cannot listen on [::1]:8000 (Address already in use)" in capsys.readouterr().err


def ask(address: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{address}/predict", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.slow
def test_predict_mlflow_and_serve_give_the_same_answers_and_ctrl_c_leaves_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(tmp_path, "classification", "mlm_nsp")
    (tmp_path / "asked.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    assert main(["predict", str(tmp_path), "--input", str(tmp_path / "asked.txt")]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    served = load_served(tmp_path)
    by_mlflow = served.predict(SimpleNamespace(), TEXTS).to_dict("records")

    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rungwise", "serve", str(tmp_path)],
        cwd=REPOSITORY,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        loading, first, curl = (process.stdout.readline().strip() for _ in range(3))
        assert loading.startswith(f"loading {tmp_path}, to listen on http://127.0.0.1:")
        assert "Ctrl-C stops it" in first, process.stderr and process.stderr.read()
        address = next(word for word in first.split() if word.startswith("http://127.0.0.1:"))
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        told = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
        assert "label" in json.loads(told.stdout), curl
        assert shlex.split(curl)[1] == f"{address}/predict"
        with ThreadPoolExecutor(16) as pool:
            alone = list(pool.map(lambda text: ask(address, text), TEXTS))
        status, together = ask(address, TEXTS)
        assert {status, *(each for each, _ in alone)} == {200}
        for kind in (by_mlflow, [answer for _, answer in alone], together):
            for own, answer in zip(kind, expected, strict=True):
                assert own["label"] == answer["label"]
                assert own["probability"] == pytest.approx(answer["probability"], abs=1e-5)
        status, refused = ask(address, [{"text": "w5"}, {"second": "w6"}])
        assert (status, refused) == (
            400,
            {"error": "input 2: text is missing; this model needs text, found second"},
        )
        assert ask(address, "w5 " * 40_000)[0] == 413
        rebound = urllib.request.Request(f"{address}/health", headers={"host": "rebound.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(rebound, timeout=60)
        with urllib.request.urlopen(f"{address}/health", timeout=60) as reply:
            assert reply.status == 200
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as reply:
            metrics = reply.read().decode()
        requests = len(TEXTS) + 2
        assert f'rungwise_serve_requests_total{{status="200"}} {requests}.0' in metrics
        assert 'rungwise_serve_requests_total{status="400"} 1.0' in metrics
        [line] = [
            e for e in metrics.splitlines() if e.startswith("rungwise_serve_batch_examples_count")
        ]
        assert float(line.split()[-1]) < 2 * len(TEXTS) + 1, "examples met in batches"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            kill_with_children(process.pid)
    assert (process.returncode, out, err) == (0, "stopped\n", "")
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive, [each.cmdline() for each in alive]
