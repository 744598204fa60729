"""`python -m benchmarks.gpu`: everything but the device, tried on a CPU."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu


@pytest.mark.slow
def test_a_simulation_runs_every_part_to_its_end(tmp_path: Path) -> None:
    assert gpu.main(["--simulate", "--to", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*-gpu-simulated.json")
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    assert list(parts) == list(gpu.PARTS)
    assert set(parts["workers"]["over one"]) == {"ddp", "fsdp"}
    assert all(parts["resume"]["same bits"].values())
    throughput = parts["throughput"]
    assert set(throughput) == {case.name for case in gpu.CASES["simulated"]}
    assert all("tokens_per_second" in each for each in throughput.values())
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert gpu.ONLY_A_GPU in page
    assert all(f"## {name.capitalize()}" in page for name in gpu.PARTS)


def test_a_part_that_fails_is_in_the_results_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: gpu.Plan) -> dict[str, object]:
        raise RuntimeError("no kernel image")

    parts = {"tests": fail, "families": lambda plan: {"gpt": 1}}
    monkeypatch.setattr(gpu, "PARTS", parts)
    assert gpu.main(["--simulate", "--only", "tests,families", "--to", str(tmp_path)]) == 1
    (file,) = tmp_path.glob("*.json")
    results = json.loads(file.read_text(encoding="utf-8"))["parts"]
    assert results == {"tests": {"error": "RuntimeError: no kernel image"}, "families": {"gpt": 1}}
    assert "Failed: RuntimeError: no kernel image" in file.with_suffix(".md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_way_to_try_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "there is no GPU here; --simulate tries everything" in capsys.readouterr().err


def test_what_has_no_time_left_is_named(tmp_path: Path) -> None:
    options = ["--simulate", "--only", "throughput", "--minutes", "0", "--to", str(tmp_path)]
    assert gpu.main(options) == 0
    page = next(tmp_path.glob("*.md")).read_text(encoding="utf-8")
    assert page.count("not run: no time was left; raise --minutes") == len(gpu.CASES["simulated"])
