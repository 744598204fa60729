"""A search over pretraining on Ray: killed while it trains, then gone on with by two drivers."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.search.record import SearchSummary
from rungwise.pretraining.proof_process import kill_with_children
from tests.conftest import small_recipe, write_corpus, write_recipe
from tests.waiting import wait_until

KILLS = 3
SPACE = {
    "pretrain.optimizer.learning_rate": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "instances.sequence_length": {"kind": "choice", "values": [16, 32]},
}


def write(folder: Path, root: str) -> Path:
    recipe = small_recipe(
        folder / root,
        folder / "text",
        instances={"kind": "causal", "sequence_length": 32},
        search={"trials": 4, "winner_seeds": 2, "tokens": 40_000, "space": SPACE},
    )
    recipe["model"] |= {"kind": "gpt"}
    recipe["compute"] |= {"num_workers": 1, "max_concurrent_stages": 2}
    return write_recipe(folder / f"{root}.yaml", recipe)


Process = subprocess.Popen[str]


@pytest.fixture
def start(ray_session: None) -> Iterator[Callable[[Path], Process]]:
    """Starts a driver; none outlives the test."""
    processes: list[Process] = []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
    }

    def begin(recipe: Path) -> Process:
        command = [sys.executable, "-m", "rungwise", "run", "pretrain", str(recipe)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        kill_with_children(process.pid)
        process.communicate()


def finish(process: Process) -> str:
    text, _ = process.communicate(timeout=900)
    assert process.returncode == 0, text
    return text


def pretrained(root: Path) -> int:
    return len([*(root / "pretrain").glob("*/artifact.json")])


def summary(root: Path) -> SearchSummary:
    (artifact,) = artifacts.list_artifacts(Folder.at(root), "search")
    return SearchSummary.of(artifact)


@pytest.mark.slow
def test_killed_and_gone_on_with_by_two_drivers_a_search_ends_the_same(
    start: Callable[[Path], Process], tmp_path: Path
) -> None:
    write_corpus(tmp_path / "text", documents=12)
    finish(start(write(tmp_path, "whole")))
    killed, draw = write(tmp_path, "killed"), random.Random(0)
    for number in range(KILLS):
        process = start(killed)
        at = number + 1
        wait_until(f"{at} trials", lambda at=at: pretrained(tmp_path / "killed") >= at)
        wait_until("a moment", lambda: draw.random() < 0.02)
        kill_with_children(process.pid)
        process.communicate()
    both = [start(killed), start(killed)]
    said = [finish(process) for process in both]
    whole, other = summary(tmp_path / "whole"), summary(tmp_path / "killed")

    def outcome(search: SearchSummary) -> list[object]:
        trials = [(trial.values, trial.score, trial.tokens) for trial in search.trials]
        return [trials, search.best.number, search.winner_scores]

    assert outcome(other) == outcome(whole)
    assert whole.tokens == pytest.approx(40_000, rel=0.05)
    # Of what was left each stage was built by one of the two.
    done = [re.findall(r"^(pretrain\S*) +done", text, re.MULTILINE) for text in said]
    assert not {*done[0]} & {*done[1]}
    assert pretrained(tmp_path / "killed") == pretrained(tmp_path / "whole") == 5
