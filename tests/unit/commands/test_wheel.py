"""A wheel, installed without the checkout, has the workflows and recipes and runs them by name."""

import os
import shlex
import site
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rungwise.tasks.kinds.examples import SPLITS
from tests.commands import execute
from tests.conftest import REPOSITORY, write_corpus

pytestmark = pytest.mark.slow
# Runs a command, then refuses every module of the checkout.
CODE = f"""
import sys
from rungwise.__main__ import main
status = main(sys.argv[1:])
files = [str(getattr(module, "__file__", None)) for module in list(sys.modules.values())]
assert any(file.endswith("site-packages/rungwise/__main__.py") for file in files)
assert not [file for file in files if file.startswith({str(REPOSITORY)!r} + "/platform")]
sys.exit(status)
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder beside an environment with the wheel and the packages of this one."""
    top = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", ".", "-w", str(top)]
    subprocess.run([*pip, *build], cwd=REPOSITORY, check=True)
    venv.create(top / "env")
    python = top / "env" / "bin" / "python"
    [wheel] = top.glob("*.whl")
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    [packages] = (top / "env").glob("lib/python*/site-packages")
    # A line of a .pth file is a folder of packages, whose own .pth files do not count.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    (top / "work").mkdir()
    return top / "work"


@pytest.fixture
def run(folder: Path) -> Run:
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}

    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [str(folder.parent / "env" / "bin" / "python"), "-c", CODE, *arguments]
        return execute(command, folder, environment, status)

    return run


def test_init_prints_a_command_that_runs(folder: Path, run: Run) -> None:
    write_corpus(folder / "letters", documents=60)
    looked = run("init", "letters")
    [line] = [line for line in looked.stdout.splitlines() if line.startswith("  rungwise run ")]
    _, verb, *arguments = shlex.split(line)
    assert [verb, *arguments] == ["run", "pretrain", "letters.yaml"]
    assert "stages to build below" in run("plan", *arguments).stdout
    small = ["pretrain.steps=60", "pretrain.validation_every_steps=30", "compute.num_workers=1"]
    assert "stages built" in run(verb, *arguments, *small).stdout


def test_recipes_of_the_package_are_planned_by_name(run: Run) -> None:
    assert "stages to build below" in run("plan", "finetune", "quickstart").stdout
    # The text of the ladder is no part of a package.
    planned = run("plan", "ladder", "ladder-quick", status=2)
    assert "no file matches 'data/" in planned.stderr
    missing = run("plan", "ladder", "lader-quick", status=2)
    assert "did you mean ladder-quick or search-quick?" in missing.stderr


def test_the_ladder_of_the_package_runs_on_text_of_the_environment(folder: Path, run: Run) -> None:
    """Two counted rungs, and one trained and tuned for a few steps, on two of the packages."""
    ladder = REPOSITORY / "workflows" / "configs" / "ladder.yaml"
    recipe = yaml.safe_load(ladder.read_text())
    rungs, tasks, suites = ("ngram1", "ngram2", "gpt"), ("next_paragraph",), ("perplexity",)
    left_out = [
        f"{block}.{name}=null"
        for block, names in (("variants", rungs), ("tasks", tasks), ("measure", suites))
        for name in recipe[block]
        if name not in names
    ]
    small = [
        *("variants.gpt.pretrain.steps=60", "variants.gpt.pretrain.validation_every_steps=30"),
        *("measure.perplexity.documents=2", "evaluate.num_seeds=2", "curve=null"),
        *("evaluate.label_budgets=null", "tasks.next_paragraph.finetune.epochs=1"),
        *(f"tasks.next_paragraph.data.{split}_examples=8" for split in SPLITS),
        "corpus.sources=[{kind: pydocs, packages: [stdlib, numpy]}]",
    ]
    run("run", "ladder", "ladder", *left_out, *small)
    [page] = folder.glob("artifacts/ladder/*/ladder.html")
    text = page.read_text("utf-8")
    assert all(name in text for name in ("1-gram", "2-gram", "GPT"))
