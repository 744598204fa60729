"""A stranger's first day: text of five kinds and some labels, with the commands that pages and
the commands themselves name, and nothing else."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers

from rungwise.cluster.registry import HOME_VARIABLE
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BUDGET = "pretrain.steps=30 pretrain.validation_every_steps=15 compute.checkpoint_every_steps=5"


class Shell:
    """A terminal in the folder of the clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PYTHONPATH": str(folder / "platform"),
            HOME_VARIABLE: str(folder.parent / "home"),
            "COLUMNS": "100",
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        program, *arguments = shlex.split(command)
        assert program.removeprefix(".venv/bin/") == "rungwise"
        return subprocess.Popen(
            [sys.executable, "-m", "rungwise", *arguments],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def type(self, command: str) -> str:
        """What a command prints that succeeds."""
        process = self.start(command)
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 0, f"{command}\n{said}"
        assert "Traceback" not in said, said
        return said


def advised(said: str, verb: str) -> str:
    """The one command of this verb that was printed."""
    [command] = dict.fromkeys(re.findall(rf"(rungwise {verb} .*?)\s*$", said, re.M))
    return command


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> Shell:
    """A clone, with text and labels beside its files."""
    folder = tmp_path_factory.mktemp("first") / "clone"
    for part in ("platform", "workflows"):
        shutil.copytree(
            REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    corpora = real_data / "corpora"
    for name, files in (
        ("my books", ("carroll-alice", "chesterton-ball", "dickens-christmas_carol")),
        ("chinese", ("sanguo",)),
    ):
        (folder / name).mkdir()
        for file in files:
            place = "en/gutenberg" if name == "my books" else "zh/classics"
            shutil.copy(corpora / place / f"{file}.txt.gz", folder / name)
    brown = gzip.decompress((corpora / "en" / "brown" / "brown.txt.gz").read_bytes()).decode()
    (folder / "big.txt").write_text(brown[:2_000_000])
    paragraphs = [each for each in brown.split("\n\n") if len(each) > 200][:1500]
    records = [{"id": number, "body": text} for number, text in enumerate(paragraphs)]
    (folder / "posts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    pq.write_table(pa.Table.from_pylist(records), folder / "articles.parquet")
    rows = (real_data / "tasks" / "en" / "SST-2" / "train.tsv").read_text().splitlines()[:600]
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "opinion"])
        for row in rows:
            text, label = row.split("\t")
            writer.writerow([text, ("negative", "positive")[int(label)]])
    return Shell(folder)


@pytest.mark.parametrize("text", ["chinese", "big.txt", "posts.jsonl", "articles.parquet"])
def test_text_of_any_kind_becomes_a_model_that_transformers_loads(shell: Shell, text: str) -> None:
    said = shell.type(f"rungwise init {text}")
    said = shell.type(f"{advised(said, 'run')} {BUDGET}")
    assert "6 of 6 stages built" in said
    command = advised(said, "export").replace("FOLDER", f"out-{Path(text).stem}")
    said = shell.type(command)
    assert "AutoModelForMaskedLM" in said or "AutoModelForPreTraining" in said
    filled = transformers.pipeline("fill-mask", model=str(shell.folder / f"out-{Path(text).stem}"))
    sentence = "\u5374\u8bf4[MASK]\u64cd\u3002" if text == "chinese" else "the [MASK] of it was ."
    answers = filled(sentence)
    assert len(answers) == 5
    assert all(0 < each["score"] < 1 for each in answers)


def test_books_and_labels_from_ctrl_c_to_answers(shell: Shell) -> None:
    said = shell.type("rungwise init 'my books' --labels reviews.csv")
    command = f"{advised(said, 'run')} {BUDGET} evaluate.num_seeds=2 finetune.epochs=1"
    process = shell.start(command)
    checkpoints = shell.folder / "artifacts" / "pretrain"
    while not list(checkpoints.glob("my-books*/checkpoints/*/*")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    said = shell.type(advised(said, "run"))
    assert re.search(r"[1-9]\d* of 10 stages built", said)
    [line] = [line for line in said.splitlines() if line.startswith("result")]
    assert "reviews" in line or "pretrained" in line
    (shell.folder / "FILE").write_text("a moving and funny film\na dull mess\n")
    answers = shell.type(advised(said, "predict")).splitlines()
    assert {json.loads(each)["label"] for each in answers[-2:]} <= {"negative", "positive"}
    assert "cached" in shell.type(command.replace(" run ", " plan ", 1))
    model = advised(said, "predict").split()[2]
    shell.type(f"rungwise why {model}")
    shell.type(f"rungwise verify {model}")


@pytest.fixture
def cluster(shell: Shell) -> Iterator[str]:
    said = shell.type("rungwise up --nodes 2")
    try:
        yield said
    finally:
        shell.type("rungwise down")


def test_the_same_recipe_on_a_cluster(shell: Shell, cluster: str) -> None:
    if not (shell.folder / "big.yaml").exists():
        shell.type("rungwise init big.txt")
    assert "rungwise submit" in cluster
    said = shell.type(f"rungwise submit pretrain big.yaml name=job {BUDGET} --no-wait")
    checkpoints = shell.folder / "artifacts" / "pretrain"
    deadline = time.monotonic() + 600
    while not list(checkpoints.glob("job*/checkpoints/*/*")):
        assert time.monotonic() < deadline, shell.type("rungwise jobs")
        time.sleep(0.5)
    shell.type(advised(said, "stop"))
    assert "STOPPED" in shell.type("rungwise jobs").upper()
    said = shell.type(advised(said, "logs").replace("logs", "resume").replace(" --follow", ""))
    assert "stages built" in said
