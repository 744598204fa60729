"""The layout: platform/ is a source root that hides nothing, and imports go one way."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import rungwise
from rungwise import ray_private
from rungwise.commands.parser import VERBS, make_parser
from tests.commands import execute

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGE = REPOSITORY / "platform" / "rungwise"
# What must run on a bare machine with PyTorch: no Ray, no MLflow, whatever imports it.
BARE = (
    "models",
    "models.losses.objectives",
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


def test_of_training_only_its_folder_ray_imports_ray() -> None:
    for path in (PACKAGE / "training").glob("*.py"):
        for node in list_imports(path):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in modules if name.split(".")[0] == "ray"], path
            assert not [name for name in modules if name.startswith("rungwise.training.ray")], path


# Lower layers first; a module may import from its own layer and those below.
LAYERS = (
    "core",
    "ray_private",
    "monitoring",
    "cluster",
    "corpus",
    "tokenizer",
    "instances",
    "models",
    "training",
    "forecast",
    "tasks",
    "finetune",
    "tuning",
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


@functools.cache
def list_nodes(path: Path) -> list[ast.AST]:
    """The imports of a file, those within functions too, and its attributes."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return [each for each in nodes if isinstance(each, ast.Import | ast.ImportFrom | ast.Attribute)]


def list_imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in list_nodes(path) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_imports_go_one_way() -> None:
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE)
        own = relative.parts[0].removesuffix(".py")
        assert own in RANK, f"{own} has no layer: add it to LAYERS"
        for node in list_imports(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rungwise"):
                parts = (node.module or "").split(".")[1:]
                for target in [parts[0]] if parts else [alias.name for alias in node.names]:
                    where = f"{relative}:{node.lineno} imports {target}"
                    assert RANK[target] <= RANK[own], f"{where}, a layer above {own}"


def _imports(path: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports, for types alone or late included."""
    names: set[str] = set()
    for node in list_imports(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            of = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules else f"{node.module}" for name in of}
    return names & modules


def _circle(root: Path) -> list[str]:
    """Files below `root` that import one another in a circle; empty if there is none."""
    modules = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in root.rglob("*.py")
    }
    graph = {name: _imports(path, set(modules)) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_file_imports_itself_in_a_circle_types_included(tmp_path: Path) -> None:
    assert _circle(PACKAGE) == []
    for name, other in (("one", "two"), ("two", "one")):
        code = f"if TYPE_CHECKING:\n    from {tmp_path.name}.{other} import x"
        (tmp_path / f"{name}.py").write_text(code)
    assert set(_circle(tmp_path)) == {f"{tmp_path.name}.one", f"{tmp_path.name}.two"}


def _is_private(name: str) -> bool:
    """Whether a dotted name of Ray lies in what Ray does not publish."""
    parts = name.split(".")
    inside = ("ray.autoscaler", "ray.core", "ray.dashboard", "ray.train.v2", "ray.includes")
    return parts[0] == "ray" and (
        any(part.startswith("_") and not part.startswith("__") for part in parts)
        or name.startswith(inside)
    )


def _root(node: ast.expr) -> str:
    """The name with which a chain of attributes begins."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _private_names(path: Path) -> list[str]:
    names: list[str] = []
    for node in list_nodes(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and _root(node) == "ray":
            names.append(ast.unparse(node))
    return [name for name in names if _is_private(name)]


def test_the_public_names_are_imported_when_used_and_the_models_import_no_ray() -> None:
    """In one process: PyTorch alone takes seconds."""
    names = ["Recipe", "load", "load_recipe", "plan", "run"]
    assert rungwise.__all__ == names
    assert (PACKAGE / "py.typed").exists()
    code = (
        "import sys, rungwise; heavy = {'ray', 'torch', 'mlflow', 'pydantic'}; "
        "assert not heavy & set(sys.modules); "
        f"[__import__('rungwise.' + name) for name in {BARE}]; "
        "bad = {'ray', 'mlflow'} & set(sys.modules); assert not bad, bad; "
        f"from rungwise import *; assert all(callable(globals()[name]) for name in {names})"
    )
    execute([sys.executable, "-c", code])


def test_building_shards_needs_no_pytorch() -> None:
    code = (
        "import sys, rungwise.instances.building, rungwise.instances.summary; "
        "assert 'torch' not in sys.modules"
    )
    execute([sys.executable, "-c", code])


def test_the_help_lists_every_verb() -> None:
    _, verbs = make_parser()
    listed = [verb.replace("_", "-") for group in VERBS.values() for verb in group]
    assert sorted(verbs) == sorted(listed)


def test_one_file_names_what_is_inside_ray() -> None:
    files = [*PACKAGE.rglob("*.py")]
    for path in files:
        assert _private_names(path) == [], path
    used = "\n".join(path.read_text("utf-8") for path in files)
    for name in ray_private._PLACES:
        assert getattr(ray_private, name) is not None
        assert used.count(name) > 1, f"{name} is used by nobody"
