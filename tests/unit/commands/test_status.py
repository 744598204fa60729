"""`rungwise status`: the stages of runs with their last figures in MLflow."""

from pathlib import Path

import pytest

from rungwise.__main__ import main
from rungwise.core.tracking.tracker import Tracker


def test_the_stages_of_a_run_have_their_last_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(uri, "rungwise", tmp_path / "spool")
    for run in ("bert", "gpt"):
        tracker.open(run, f"{run} pretrain.steps=5", tags={"rungwise.label": run})
        for stage in ("corpus", "pretrain"):
            key = f"{run}/{stage}"
            tracker.open(key, f"{stage} of {run}", parent=run, tags={"rungwise.stage": stage})
    for step, tokens in enumerate((1000.0, 4321.0)):
        tracker.metrics("bert/pretrain", {"system/tokens_per_second": tokens}, step)
    tracker.metrics("bert/corpus", {"system/stage_seconds": 75.0}, 0)
    tracker.close("bert/corpus", "FINISHED")
    assert tracker.finish(60) == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["status", "bert"]) == 0
    *stages, source = capsys.readouterr().out.splitlines()
    assert sorted(stages) == [
        "bert  corpus  finished  time 0:01:15",
        "bert  pretrain  running  tokens/s 4,321",
    ]
    assert source.startswith("MLflow at sqlite")
    assert main(["status", "elmo"]) == 0
    assert capsys.readouterr().out.startswith("no run")
    assert main(["status", "--experiment", "other"]) == 2
    assert "has no experiment other" in capsys.readouterr().err
