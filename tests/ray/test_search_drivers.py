"""A search over pretraining on Ray: killed at random moments, then gone on with by two drivers."""

import multiprocessing
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import ray
from rich.console import Console

from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.stage import Stage
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.pretrainings import SearchSummary
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import chain_stages
from rungwise.pipeline.workflow import load_recipe
from rungwise.pipeline.workflow import run as run_workflow
from rungwise.training.ray.resume_proof import kill_with_children
from tests.conftest import small_recipe, write_corpus, write_recipe
from tests.training_runs import forkserver
from tests.waiting import wait_until

KILLS = 3
# Counting takes a moment, so that the time goes into drivers; each trial has stages of its own.
SPACE = {
    "tokenizer.vocab_size": {"kind": "choice", "values": [120, 140, 160, 180]},
    "model.order": {"kind": "choice", "values": [1, 2, 3, 4]},
}
TRIALS = 16
DONE = re.compile(r"^((?:pretrain|tokens|tokenizer)\S*) +done", re.MULTILINE)


def write(folder: Path, root: str) -> Path:
    recipe = small_recipe(
        folder / root,
        folder / "text",
        model={"kind": "ngram", "fallback_discounts": [0.5, 1.0, 1.5]},
        pretrain={"kind": "counts"},
        search={"measure": {"kind": "bits_per_byte"}, "space": SPACE},
    )
    del recipe["instances"]
    recipe["compute"] |= {"num_workers": 1, "max_concurrent_stages": 2}
    return write_recipe(folder / f"{root}.yaml", recipe)


def list_pretraining(recipe: Recipe) -> list[Stage]:
    return chain_stages(recipe)[0]


def drive(recipe: Path, log: Path, environment: dict[str, str]) -> None:
    """A driver on the Ray of the environment, as `rungwise run` without a page."""
    os.environ.update(environment)
    with log.open("w") as stream:
        run_workflow(list_pretraining, load_recipe(recipe), Console(file=stream, width=200))


def kill(process: BaseProcess) -> None:
    assert process.pid is not None
    kill_with_children(process.pid)
    process.join()


@pytest.fixture
def start(ray_session: None, tmp_path: Path) -> Iterator[Callable[[Path], BaseProcess]]:
    processes: list[BaseProcess] = []
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}

    def begin(recipe: Path) -> BaseProcess:
        log = tmp_path / f"driver-{len(processes)}.log"
        process = context.Process(target=drive, args=(recipe, log, environment))
        process.start()
        processes.append(process)
        return process

    with forkserver(__name__):
        context = multiprocessing.get_context("forkserver")
        yield begin
    for process in processes:
        kill(process)


def pretrained(root: Path) -> int:
    return len([*(root / "pretrain").glob("*/artifact.json")])


def outcome(root: Path) -> list[object]:
    (artifact,) = artifacts.list_artifacts(Folder.at(root), "search")
    search = SearchSummary.of(artifact)
    trials = [(trial.values, trial.score, trial.tokens) for trial in search.trials]
    return [trials, search.best.number, search.winner_scores]


@pytest.mark.slow
def test_killed_and_gone_on_with_by_two_drivers_a_search_ends_the_same(
    start: Callable[[Path], BaseProcess], tmp_path: Path
) -> None:
    write_corpus(tmp_path / "text", documents=12)
    run_workflow(list_pretraining, load_recipe(write(tmp_path, "whole")), Console(quiet=True))
    killed, root, draw = write(tmp_path, "killed"), tmp_path / "killed", random.Random(0)
    for _ in range(KILLS):
        process, goal = start(killed), pretrained(root) + 1
        wait_until(f"{goal} trials", lambda goal=goal: pretrained(root) >= goal)
        time.sleep(0.3 * draw.random())
        kill(process)
    assert pretrained(root) < TRIALS
    both = [start(killed), start(killed)]
    for process in both:
        process.join(300)
        assert process.exitcode == 0
    assert outcome(root) == outcome(tmp_path / "whole")
    assert pretrained(root) == TRIALS
    logs = [file.read_text() for file in tmp_path.glob("driver-*.log")]
    built = Counter(name for text in logs for name in DONE.findall(text))
    assert len(built) >= TRIALS - KILLS
    assert {*built.values()} == {1}
