"""The layout: platform/ is a source root that hides nothing, and imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "platform" / "rungwise"
# What must run on a bare machine with PyTorch: no Ray, no MLflow, whatever imports it.
BARE = (
    "models",
    "models.objectives",
    "training.loop",
    "training.optimizer",
    "training.checkpoint",
    "training.feed",
    "training.parallel",
    "instances.reader",
    "instances.masking",
    "instances.order",
    "core.randomness",
)


def test_import_platform_still_finds_the_standard_library() -> None:
    code = "import platform, sys; assert platform.system() and 'rungwise' not in platform.__file__"
    for arguments in (["-c", code], ["-c", "import sys; sys.path.insert(0, '.'); " + code]):
        subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, check=True)
    assert not (REPOSITORY / "platform" / "__init__.py").exists()
    assert not (REPOSITORY / "platform" / "platform.py").exists()


def test_the_loop_and_the_models_import_neither_ray_nor_mlflow() -> None:
    modules = list(BARE)
    code = (
        f"import sys; [__import__('rungwise.' + name) for name in {modules}]; "
        "bad = {'ray', 'mlflow'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


# Lower layers first; a module may import from its own layer and those below.
LAYERS = (
    "core",
    "cluster",
    "corpus",
    "tokenizer",
    "instances",
    "models",
    "training",
    "pretraining",
    "tasks",
    "finetune",
    "sweep",
    "evaluation",
    "serving",
    "report",
    "pipeline",
    "submission",
    "commands",
    "__main__",
    "__init__",
)
RANK = {name: rank for rank, name in enumerate(LAYERS)}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    own = relative.parts[0].removesuffix(".py")
    assert own in RANK, f"{own} has no layer: add it to LAYERS"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rungwise"):
            parts = (node.module or "").split(".")[1:]
            for target in [parts[0]] if parts else [alias.name for alias in node.names]:
                assert target == own or RANK[target] < RANK[own] or (RANK[target] == RANK[own]), (
                    f"{relative}:{node.lineno} imports {target}, a layer above {own}"
                )
