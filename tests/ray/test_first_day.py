"""A stranger's first day, with the commands that pages and the commands themselves name."""

import csv
import gzip
import itertools
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

from rungwise.cluster.local import HOME_VARIABLE
from tests.commands import RUNGWISE, copy_project

# Against hanging: what takes long is another machine's matter.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CHINESE = "三国"
BUDGET = "pretrain.steps=60 pretrain.validation_every_steps=30"
# Steps enough for Ctrl-C to come in between, however slow the hand and fast the machine.
LONGER = "pretrain.steps=600 pretrain.validation_every_steps=300 compute.checkpoint_every_steps=20"


def _is_variable(word: str) -> bool:
    return word.partition("=")[0].isupper()


class Shell:
    """A terminal in the folder of the clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PYTHONPATH": str(folder / "platform"),
            HOME_VARIABLE: str(folder.parent / "home"),
            "COLUMNS": "100",
        }
        self._screen = folder.parent / "screen"

    def start(self, command: str) -> subprocess.Popen[bytes]:
        words = shlex.split(command)
        variables = dict(word.split("=", 1) for word in itertools.takewhile(_is_variable, words))
        program, *arguments = words[len(variables) :]
        beside = [str(Path(sys.executable).with_name(program))]
        with self._screen.open("wb") as screen:
            return subprocess.Popen(
                [*(RUNGWISE if program == "rungwise" else beside), *arguments],
                cwd=self.folder,
                env=self.environment | variables,
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self, process: subprocess.Popen[bytes], status: int = 0) -> str:
        """What a command has printed once it has ended, with this status and no traceback."""
        assert process.wait() == status, self._screen.read_text()
        said = self._screen.read_text()
        assert "Traceback" not in said, said
        return said

    def type(self, command: str) -> str:
        """What a command prints that succeeds."""
        return self.said(self.start(command))

    def interrupt(self, process: subprocess.Popen[bytes], run: str) -> str:
        """Press Ctrl-C once the run's pretraining has saved a checkpoint; what was printed."""
        while not any(self.folder.glob(f"artifacts/pretrain/{run}-*/checkpoints/*/*")):
            assert process.poll() is None, self._screen.read_text()
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        return self.said(process, status=130)

    def attempts(self, run: str) -> list[int]:
        """The steps from which the run's pretraining has begun."""
        [record] = self.folder.glob(f"artifacts/pretrain/{run}-*/artifact.json")
        gradient = json.loads(record.read_text())["summary"]["gradient"]
        return [attempt["step"] for attempt in gradient["attempts"]]


def advised(said: str, verb: str) -> str:
    [command] = dict.fromkeys(re.findall(rf"(rungwise {verb} .*?)\s*$", said, re.M))
    return command


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> Shell:
    """A clone, with text and labels beside its files: of each as little as a model can read."""
    folder = copy_project(tmp_path_factory.mktemp("first") / "clone")
    corpora = real_data / "corpora"

    def text(place: str) -> str:
        return gzip.decompress((corpora / f"{place}.txt.gz").read_bytes()).decode()

    (folder / "my books").mkdir()
    for book in ("carroll-alice", "dickens-christmas_carol"):
        shutil.copy(corpora / "en" / "gutenberg" / f"{book}.txt.gz", folder / "my books")
    (folder / CHINESE).mkdir()
    (folder / CHINESE / "sanguo.txt").write_text(text("zh/classics/sanguo")[:60_000])
    brown = text("en/brown/brown")
    (folder / "big.txt").write_text(brown[:400_000])
    articles = ["\n".join(each.split("\n")[:8]) for each in brown.split("\n\n")[:300]]
    records = [{"id": number, "body": text} for number, text in enumerate(articles)]
    (folder / "posts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    pq.write_table(pa.Table.from_pylist(records), folder / "articles.parquet")
    rows = (real_data / "tasks" / "en" / "SST-2" / "train.tsv").read_text().splitlines()[:120]
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "opinion"])
        for row in rows:
            review, label = row.split("\t")
            writer.writerow([review, ("negative", "positive")[int(label)]])
    return Shell(folder)


@pytest.mark.parametrize("text", [CHINESE, "posts.jsonl", "articles.parquet"])
def test_text_of_any_kind_becomes_a_model_that_transformers_loads(shell: Shell, text: str) -> None:
    said = shell.type(f"rungwise init {text}")
    said = shell.type(f"{advised(said, 'run')} {BUDGET}")
    assert "6 of 6 stages built" in said
    said = shell.type(advised(said, "export").replace("FOLDER", f"{text}-model"))
    assert "AutoModelFor" in said
    filled = transformers.pipeline("fill-mask", model=str(shell.folder / f"{text}-model"))
    sentence = "却说[MASK]操。" if text == CHINESE else "the [MASK] of it was ."
    answers = filled(sentence)
    assert len(answers) == 5
    assert all(0 < each["score"] < 1 for each in answers)


def test_books_and_labels_from_ctrl_c_to_answers(shell: Shell) -> None:
    said = shell.type("rungwise init 'my books' --labels reviews.csv")
    command = f"{advised(said, 'run')} {LONGER} evaluate.num_seeds=2 finetune.epochs=1"
    said = shell.interrupt(shell.start(command), "my-books")
    said = shell.type(advised(said, "run"))
    assert re.search(r"[1-9]\d* of 10 stages built", said)
    assert shell.attempts("my-books")[-1] >= 20
    [line] = [line for line in said.splitlines() if line.startswith("result")]
    assert "test accuracy" in line
    (shell.folder / "new.txt").write_text("a moving and funny film\na dull mess\n")
    answers = shell.type(advised(said, "predict").replace("FILE", "new.txt")).splitlines()
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


def test_a_big_file_on_a_cluster(shell: Shell, cluster: str) -> None:
    shell.type("rungwise init big.txt")
    assert "rungwise submit" in cluster
    job = shell.start(f"rungwise submit pretrain big.yaml {LONGER}")
    said = shell.interrupt(job, "big")
    [stop] = [line.strip() for line in said.splitlines() if " ray job stop " in line]
    assert "stopped" in shell.type(stop)
    said = shell.type(f"rungwise submit pretrain big.yaml {LONGER}")
    assert "of 6 stages built" in said
    assert shell.attempts("big")[-1] >= 20
