"""What each command imports: no library of a second or more that it does not need."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rungwise.core.exit_codes import INTERRUPTED
from rungwise.core.stages import artifact
from rungwise.core.stages.stage import Context, StageType, import_function
from rungwise.core.storage.folder import Folder
from rungwise.pipeline import loading
from rungwise.tasks.config import TASK, FilesTaskConfig
from tests.commands import environment, execute
from tests.conftest import REPOSITORY, small_recipe, write_corpus, write_recipe
from tests.summaries import end_stage

# What a recipe and its plan do without, though some of it is what builds or draws.
BUILDING = {
    *("ray", "ray.data", "mlflow", "sqlalchemy", "matplotlib", "pandas", "sympy", "jinja2"),
    *("torch._dynamo", "torch.distributed.fsdp", "scipy.special", "scipy.stats", "sklearn"),
    *("transformers", "numba", "rungwise.report.run", "rungwise.report.ladder"),
    *(
        "rungwise.corpus.building.stage",
        "rungwise.training.ray.gradient",
        "rungwise.tuning.running",
    ),
}
# What shows a machine or a store also does without a recipe's blocks.
RECIPE = {*BUILDING, "torch", "numpy", "pyarrow", "tokenizers", "rungwise.pipeline.recipe"}
PARSER = {*RECIPE, "pydantic", "fsspec"}
# MLflow imports these.
STORE = RECIPE - {"mlflow", "sqlalchemy", "pandas", "numpy", "pyarrow", "scipy.special"}
FINETUNING = [
    "tasks={t: {data: {kind: paragraph_label, num_labels: 3}}}",
    "variants={a: {}, b: {finetune.initialisation: random}}",
    "finetune={pooling: mean, sequence_length: 32}",
    "sweep={trials: 2, space: {finetune.epochs: {kind: choice, values: [1, 2]}}}",
    "evaluate={num_seeds: 2}",
]
# Keeps one finished stage, and imports what the workflows do.
WORKFLOW = """
from rungwise.pipeline.experiment import experiment_stages
from rungwise.pipeline.ladder import ladder_stages
from rungwise.pipeline.stages import chain_stages, report_stage
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.config import TASK

def stages(recipe):
    config = FilesTaskConfig.model_validate(TASK_BLOCK)
    return [TASK.stage(config)]
"""


def list_imported(commands: list[list[str]], folder: Path) -> tuple[set[str], str]:
    """The modules that are imported after these commands in one process, and what they printed."""
    code = (
        "import contextlib, json, sys; from rungwise.__main__ import main\n"
        f"for command in {commands}:\n"
        "    with contextlib.suppress(SystemExit): main(command)\n"
        "print(json.dumps([*sys.modules]))"
    )
    ended = execute([sys.executable, "-c", code], folder, environment())
    *lines, modules = ended.stdout.splitlines()
    return set(json.loads(modules)), "\n".join([*lines, ended.stderr])


# Each with what it says.
COMMANDS: list[tuple[set[str], dict[str, list[str]]]] = [
    (PARSER, {"from text to a page": ["--help"], "WORKFLOW": ["help", "run"]}),
    (RECIPE, {"nothing wrong": ["doctor"], "no cluster was started": ["down"]}),
    (STORE, {"no MLflow store": ["status"]}),
    (
        BUILDING,
        {
            "6 of 6 stages to build below": ["plan", "pretrain", "recipe.yaml"],
            "11 of 11 stages to build below": ["plan", "finetune", "recipe.yaml", *FINETUNING],
            "unknown key": ["run", "pretrain", "recipe.yaml", "pretrain.stepz=5"],
            "hidden_size": ["run", "pretrain", "recipe.yaml", "model.num_heads=3"],
            "there is no recipe": ["run", "pretrain", "missing.yaml"],
        },
    ),
]


@pytest.mark.parametrize(
    ("unneeded", "commands"), COMMANDS, ids=["help", "machine", "store", "recipe"]
)
def test_a_command_imports_what_it_needs(
    unneeded: set[str], commands: dict[str, list[str]], tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "text", documents=6)
    write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path / "root", corpus))
    modules, text = list_imported([*commands.values()], tmp_path)
    assert [says for says in commands if says not in text] == []
    assert not unneeded & modules


def test_a_run_with_nothing_to_build_imports_nothing_that_builds(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        rows = "".join(f"{split} good text {n},a\n{split} bad text {n},b\n" for n in range(8))
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}")
    block = {
        "kind": "files",
        "format": {
            "kind": "table",
            "columns": {"text": "text", "label": "label"},
            "delimiter": ",",
        },
        **{split: str(tmp_path / f"{split}.csv") for split in ("train", "validation", "test")},
    }
    corpus = write_corpus(tmp_path / "text", documents=6)
    recipe = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path / "root", corpus))
    workflow = tmp_path / "workflow.py"
    workflow.write_text(WORKFLOW.replace("TASK_BLOCK", repr(block)))
    config = FilesTaskConfig.model_validate(block)
    stage = TASK.stage(config)
    root = Folder.at(tmp_path / "root")
    folder = artifact.find_folder(root, "task", "small", stage.fingerprint)
    end_stage(folder, stage, "small", TASK.run(config, {}, folder, Context()))
    modules, text = list_imported([["run", str(workflow), str(recipe)]], tmp_path)
    assert "0 of 1 stages built" in text
    assert not BUILDING & modules


@pytest.mark.parametrize("kind", loading._TYPES.values(), ids=lambda kind: kind.name)
def test_the_function_of_a_stage_is_where_it_says(kind: StageType) -> None:
    function = import_function(kind.run)
    assert [*function.__annotations__][:4] == ["config", "inputs", "output", "context"]
    package = function.__module__.split(".")[1]
    assert (REPOSITORY / "platform" / "rungwise" / package).is_dir()


@pytest.mark.parametrize(
    "module",
    ["argparse", "rungwise.commands", "rich.console", "rungwise.core.exit_codes", "yaml", "torch"],
)
def test_ctrl_c_while_python_imports_ends_a_command_in_a_line_or_none(
    module: str, tmp_path: Path
) -> None:
    python = [sys.executable, "-X", "importtime", "-m", "rungwise"]  # says what it has imported
    command = [*python, "plan", "pretrain", "quickstart"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        names = (line.rpartition("|")[2].strip() for line in process.stderr)
        assert module in names
        process.send_signal(signal.SIGINT)
        lines = process.stderr.read().splitlines()
    said = [line for line in lines if not line.startswith("import time:")]
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in "\n".join(said)
    assert said == [] or said[0].startswith("interrupted;")
