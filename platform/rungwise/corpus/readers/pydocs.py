"""The built-in corpus: documentation on every machine that can run rungwise.

Docstrings of the standard library and of packages are read with `ast`, the language reference
(`pydoc_data.topics`) with `ast.literal_eval`: nothing is imported or executed. A document is a
module or a topic of the reference, labelled with its library.
"""

import ast
import functools
import gc
import importlib.metadata
import importlib.util
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rungwise.core.errors import ConfigError
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.document import RawDocument
from rungwise.corpus.readers.docstrings import prose

STDLIB = "stdlib"
STDLIB_LABEL = "python"

# All are installed with rungwise; the dependencies of tests are left out.
_PACKAGES = (
    "torch ray scipy sympy sklearn pandas mlflow sqlalchemy networkx numpy matplotlib "
    "huggingface_hub pydantic mpmath pyarrow aiohttp fsspec rich"
)
DEFAULT_PACKAGES = (STDLIB, *_PACKAGES.split())

# Folders of tests, or of copies of other packages.
_SKIPPED_FOLDER = re.compile(
    r"tests?|testing|idle_test|site-packages|dist-packages|__pycache__|_?vendor|_?vendored|externals?|extern|"
    r"third_party|thirdparty|thirdparty_files|node_modules"
)
_TOPICS = "pydoc_data/topics.py"
# What is installed is listed once, which takes a second; each version is a file to read.
_distributions = functools.cache(importlib.metadata.packages_distributions)
_version = functools.cache(importlib.metadata.version)
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module_name(module: SourceFile) -> str:
    """Return the name by which Python imports a module; its file is `name` in the package `uri`."""
    parts = module.name.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if module.uri == STDLIB else [module.uri, *parts])


def package_versions(packages: Iterable[str], key: str) -> dict[str, Any]:
    """Return the versions of Python and of each package: they identify the documentation."""
    by_package: dict[str, str] = {}
    for package in packages:
        if package == STDLIB:
            continue
        _folders(package, key)
        names = sorted(set(_distributions().get(package, ())))
        by_package[package] = ", ".join(f"{name} {_version(name)}" for name in names)
    return {"python": platform.python_version(), "packages": by_package}


def list_modules(packages: Iterable[str], key: str) -> list[SourceFile]:
    """Return the modules to read, sorted; raises ConfigError if a package is not installed."""
    distinct: dict[SourceFile, None] = {}
    for package in packages:
        for folder in _folders(package, key):
            paths = [folder] if folder.is_file() else sorted(_python_files(folder))
            root = folder.parent if folder.is_file() else folder
            for path in paths:
                relative = path.relative_to(root).as_posix()
                distinct[SourceFile(package, relative, path.stat().st_size)] = None
    return list(distinct)


def read_modules(modules: Iterable[SourceFile], key: str) -> Iterator[RawDocument]:
    """Yield a document per module (or topic), its paragraphs the docstrings in source order.

    A paragraph that a module repeats (generated methods, shared parameters) is kept once.
    """
    # A syntax tree holds no garbage, and looking for it doubles the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for module in modules:
            name = module_name(module)
            label = STDLIB_LABEL if module.uri == STDLIB else module.uri
            source = _find(module, key).read_bytes()
            if module.uri == STDLIB and module.name == _TOPICS:
                for topic, text in _topics(source).items():
                    yield RawDocument(f"{name}.{topic}", label, _distinct([text]))
            else:
                yield RawDocument(name, label, _distinct(docstrings(source)))
    finally:
        if collecting:
            gc.enable()


def docstrings(source: bytes) -> list[str]:
    """Return the docstrings of a module in order; none if this Python cannot parse it."""
    if b'"""' not in source and b"'''" not in source:
        return []
    with warnings.catch_warnings():
        # Invalid escapes in other people's source.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return []
    texts: list[str] = []
    _collect(tree, texts)
    return texts


def _collect(node: ast.AST, texts: list[str]) -> None:
    if isinstance(node, _SCOPES) and (text := ast.get_docstring(node)) is not None:
        texts.append(text)
    for name in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt | ast.ExceptHandler) and not isinstance(child, ast.Expr):
                _collect(child, texts)


def _topics(source: bytes) -> dict[str, str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return dict(sorted(ast.literal_eval(node.value).items()))
    return {}


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(paragraph for text in texts for paragraph in prose(text)))


def _python_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name.isidentifier() and not _SKIPPED_FOLDER.fullmatch(name)
        )
        for name in names:
            if name.endswith(".py") and name.removesuffix(".py").isidentifier():
                yield Path(parent, name)


def _find(module: SourceFile, key: str) -> Path:
    for folder in _folders(module.uri, key):
        path = folder if folder.is_file() else folder / module.name
        if path.exists():
            return path
    raise ConfigError(
        f"{key}: {module.name} of {module.uri} is not on every machine of the cluster; install "
        "the same version everywhere"
    )


def _folders(package: str, key: str) -> list[Path]:
    """Return the folders (or file) of a package. Finding a top-level package does not import it."""
    if package == STDLIB:
        return [Path(sysconfig.get_path("stdlib"))]
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ConfigError(f"{key}: the package {package!r} is not installed; install it or drop it")
    places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    folders = [Path(place) for place in places if Path(place).exists()]
    if not folders or spec.origin in ("built-in", "frozen"):
        raise ConfigError(f"{key}: the package {package!r} has no Python files to read")
    return folders
