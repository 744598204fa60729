"""The command line: a mistake is one clear line and status 2; what `status` says of runs."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rungwise.__main__ import main
from rungwise.cluster import session as sessions
from rungwise.core.stages import lease as leases
from rungwise.core.stages.lease import register_driver
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.tracker import Tracker
from rungwise.pipeline.places import list_recipes, root_folder
from rungwise.pipeline.workflow import load_recipe
from tests.conftest import REPOSITORY, Cli, small_recipe, write_corpus, write_recipe

# What a driver left that was killed on another machine, or before this one was started again.
KILLED_DRIVER = {
    "state": "held",
    "beats": "000000000001",
    "job": None,
    "host": "far",
    "pid": 1,
    "machine": "another",
    "started": "1",
}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that is refused or was built: Ray must not start."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("it starts Ray")

    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sessions, "_make_head", refuse)
    corpus = write_corpus(tmp_path / "text", documents=6)
    return write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path / "root", corpus))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain", "{recipe}", "corpus.sources.0.paths=[/no/such]"], "file matches '/no/such'"),
        (["pretrain", "quikstart.yaml"], "there is no recipe quikstart.yaml in "),
        (["pretrain", "{recipe}", "pretrain.epochs=5"], "did you mean pretrain.steps=...?"),
        (["pretrain", "{recipe}", "steps=5"], "steps=5: input should be a valid list, found 5"),
        (["pretrain", "quikstart"], "; did you mean quickstart?"),
        (["pretrain", "{recipe}", "corpus.sources.0.kind=pdf"], "warc, pydocs; found 'pdf'"),
        (["README.md", "{recipe}"], "README.md is no workflow: expected a Python file"),
        (["pretend", "{recipe}"], "there is no workflow workflows/pretend.py; found: finetune, "),
        (
            ["finetune", "{recipe}", "tasks.a.data.kind=paragraph_label", "evaluate=null"],
            "small has no block evaluate",
        ),
        (["pretrain", "{recipe}", "instances.sequence_length=600"], "set instances.masking.max_"),
        (["pretrain", "{recipe}", "root=/proc/nowhere"], "root: cannot write to /proc/nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    recipe: Path, arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status = main(["run", *(part.format(recipe=recipe) for part in arguments)])
    captured = capfd.readouterr()
    assert status == 2
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not (recipe.parent / "root").exists() or not list((recipe.parent / "root").glob("*/*"))


def test_yaml_of_other_programs_is_no_recipe(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker-compose.yaml").write_bytes(b"name: caf\xe9\nservices: {}\n")
    (tmp_path / "mine.yaml").write_text(recipe.read_text())
    monkeypatch.chdir(tmp_path)
    assert {"mine.yaml", "ladder"} <= set(names := list_recipes())
    assert "docker-compose.yaml" not in names


def test_a_missing_recipe_lists_the_others(recipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    rows = capfd.readouterr().out.splitlines()
    assert len(rows) >= 48
    first_line = (REPOSITORY / "workflows/configs/ladder.yaml").read_text().splitlines()[0]
    assert any(row.split()[0] == "ladder" and first_line[2:40] in row for row in rows)
    assert main(["plan", "pretrain", "xyz.yaml"]) == 2
    first, *others = capfd.readouterr().err.splitlines()
    assert first.endswith(f"there is no recipe xyz.yaml in {REPOSITORY}; these are there:")
    assert [each.strip() for each in others] == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\n\ndef stages(recipe:\n", "flow.py:3: '(' was never closed"),
        ("def one():\n    return 1 / 0\n\none()\n", "flow.py:2: ZeroDivisionError: division by"),
        ("import json\nimport nowhere\n", "flow.py:2: ModuleNotFoundError: No module named 'now"),
        ("stages = 3\n", "flow.py is no workflow: it has no function stages(recipe)"),
        ("def stages(recipe):\n    return []\n", "expected stages(recipe) to return some"),
    ],
)
def test_a_workflow_that_cannot_be_imported_is_one_line_with_its_place(
    recipe: Path, text: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    flow = recipe.parent / "flow.py"
    flow.write_text(text)
    assert main(["plan", str(flow), str(recipe)]) == 2
    said = capfd.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_plan_writes_nothing(recipe: Path, cli: Cli) -> None:
    out = cli("plan", "pretrain", str(recipe))
    assert "build  about" in out  # without marks of colour
    assert "6 of 6 stages to build" in out
    assert not (recipe.parent / "root").exists()


def test_doctor_finds_this_environment_well(cli: Cli) -> None:
    out = cli("doctor")
    for word in ("Python", "CPUs", "memory", "GPU", "MLflow", "ray", "torch", "nothing wrong"):
        assert word in out


def test_doctor_says_what_is_wrong_with_a_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch, unused_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:hunter2@127.0.0.1:{unused_port}")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor"]) == 1
    out = capfd.readouterr().out
    assert "does not answer" in out
    assert "hunter2" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--nodes", "x"], "--nodes: invalid int value: 'x'"),
        (["dry-run", "x", "--tokens-per-second", "-3"], "expected a number above 0, found -3"),
        (["plna"], "there is no command 'plna'; did you mean 'plan'?"),
        (["prove_resume"], "did you mean 'prove-resume'?"),
        (["xyz"], "there is no command 'xyz'; rungwise help lists the commands"),
        (["help", "rn"], "did you mean 'run'?"),
        (["run", "pretrain", "quickstart", "--verbose"], "by KEY=VALUE, such as pretrain.steps"),
        (["run", "books.yaml"], "the following arguments are required: CONFIG"),
    ],
)
def test_arguments_that_do_not_parse_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_gc_leaves_folders_of_other_kinds(recipe: Path, cli: Cli) -> None:
    root, name = recipe.parent / "root", load_recipe(recipe).name
    mine, abandoned = root / "notes" / f"{name}-old", root / "corpus" / f"{name}-0123456789ab"
    for folder in (mine, abandoned):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("a")
    assert str(abandoned) in cli("gc", "instances", str(recipe), "--delete")
    assert mine.exists()
    assert not abandoned.exists()


def test_gc_keeps_everything_while_a_run_is_in_progress(
    recipe: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any recipe: its stages may read next what is there."""
    monkeypatch.setattr(leases, "EXPIRY_SECONDS", 1.0)
    root, name = recipe.parent / "root", load_recipe(recipe).name
    folder = root / "corpus" / f"{name}-{'0' * 12}"
    folder.mkdir(parents=True)
    (root / f".{'a' * 32}.{0:012}.{'b' * 12}.lease").write_text(json.dumps(KILLED_DRIVER))
    with register_driver(Folder.at(root)):
        refused = cli("gc", "instances", str(recipe), "--delete", status=2)
    driver = f"process {os.getpid()} on {socket.gethostname()}"
    assert f"{driver} is at work below {root}" in refused
    assert folder.exists()
    cli("gc", "instances", str(recipe), "--delete")
    assert not folder.exists()
    assert not list(root.glob(".*"))


def test_a_recipe_in_a_folder_with_an_at_sign_is_a_recipe(recipe: Path, cli: Cli) -> None:
    folder = recipe.parent / "a@b"
    folder.mkdir()
    path = recipe.rename(folder / recipe.name)
    refused = cli("why", str(path), "pretrain.steps=5", status=2)
    assert "its pretrain stage is not finished" in refused


@pytest.mark.parametrize("command", [["why"], ["verify"], ["rebuild", "--into", "b"]])
def test_keys_are_refused_where_there_is_no_recipe_to_change(
    command: list[str], tmp_path: Path, cli: Cli
) -> None:
    refused = cli(*command, str(tmp_path), "pretrain.steps=5", status=2)
    assert f"pretrain.steps=5: keys can be changed of a recipe, and {tmp_path} is none" in refused


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["status"], "no MLflow store at"),
        (["why", "models:/a/1"], "no MLflow store at"),
        (["predict", "models:/a@champion", "--format", "text"], "no MLflow store at"),
        (["promote", "models:/a/1"], "no MLflow store at"),
        (["why", "--source", "a"], "no corpus below"),
        (["why"], "expects one of MODEL, --source NAME and --document ID"),
        (["why", "a", "--source", "a"], "expects one of MODEL, --source NAME and --document ID"),
        (["try", "a"], "no model here"),
    ],
)
def test_a_question_in_an_empty_folder_leaves_it_empty(
    command: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RUNGWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_what_mlflow_refuses_is_one_line(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "artifacts" / "mlflow.db"
    store.parent.mkdir()
    store.write_bytes(b"torn")
    assert "mlflow.db is not an SQLite database" in cli("promote", "models:/a/1", status=2)
    shutil.copy(empty_store, store)
    for command in (["promote", "models:/a/1"], ["why", "models:/a/1"]):
        assert "name=a" in cli(*command, status=2)


def test_the_root_of_a_job_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    job = tmp_path / "working_dir_files" / "_ray_pkg_1"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    assert root_folder("artifacts").uri == str(tmp_path / "home" / "rungwise" / "artifacts")
    assert root_folder("/data").uri == "/data"
    assert root_folder("s3://bucket/x").uri == "s3://bucket/x"
    monkeypatch.setenv("RUNGWISE_ROOT", "s3://cluster/everything")
    assert root_folder("artifacts").uri == "s3://cluster/everything/artifacts"
    assert root_folder("/data").uri == "/data"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "from text to a page:"),
        (["help"], "what was built:"),
        (["help", "init"], "usage: rungwise init"),
        (["--version"], "rungwise 0"),
    ],
)
def test_help_is_found_where_it_is_looked_for(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    program = (
        "from rungwise.core.exit_codes import run_command; import rich, sys; sys.stdin.read(); "
    )
    program += "sys.exit(run_command(lambda: PRINT or 0))"
    for line in ("print('x', flush=True)", "print('x')", "rich.print('x')"):
        process = subprocess.Popen(
            [sys.executable, "-c", program.replace("PRINT", line)],
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate(b"")
        assert (process.returncode, errors) == (0, b"")


def test_the_stages_of_a_run_have_their_last_figures(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
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
    *stages, source = cli("status", "bert").splitlines()
    assert sorted(stages) == [
        "bert  corpus  finished  time 75 s",
        "bert  pretrain  running  tokens/s 4,321",
    ]
    assert source.startswith("MLflow at sqlite")
    assert cli("status", "elmo").startswith("no run")
    assert "has no experiment other" in cli("status", "--experiment", "other", status=2)
