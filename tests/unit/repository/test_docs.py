"""Each promise of the pages on leases, secrets, losses and `verify` names the test that holds it.

A paragraph, a row of a table or an item of a list with such a word has a comment in its source:
`<!-- test: tests/unit/core/test_lease.py::test_a, tests/...::test_b -->` or
`<!-- untested: why -->`.
"""

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PROMISE = re.compile(
    r"\b(?:leases?|secrets?|passwords?|private keys?|rungwise verify|data loss|lost|loses?)\b"
    r"|\bkilled\b|`verify`"
)
COMMENT = re.compile(r"<!-- test: (.+?) -->", re.DOTALL)
UNTESTED = re.compile(r"<!-- untested: \S.*? -->", re.DOTALL)
# Generated from the code; measurements of one day.
NOT_READ = ("reference/recipe.md", "results/")
PAGES = [
    REPOSITORY / "README.md",
    *(
        path
        for path in sorted((REPOSITORY / "docs").rglob("*.md"))
        if not str(path.relative_to(REPOSITORY / "docs")).startswith(NOT_READ)
    ),
]


def list_units(text: str) -> Iterator[str]:
    """The paragraphs of a page, rows of its tables and items of its lists, without code."""
    for block in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if block.startswith(("    ", "#")):
            continue
        yield from re.split(r"\n(?=\||- |\d+\. )", block)


@functools.cache
def list_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_promise_of_a_page_names_a_test_that_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    for unit in list_units(text):
        said = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", unit, flags=re.DOTALL)
        if PROMISE.search(said):
            assert COMMENT.search(unit) or UNTESTED.search(unit), f"no test is named for: {said}"
    for comment in COMMENT.finditer(text):
        for name in comment[1].split(","):
            path, _, test = name.strip().partition("::")
            assert test.startswith("test_"), name
            assert test in list_tests(REPOSITORY / path), name


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs")
    return tmp_path


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_page_is_in_the_site_and_every_link_leads_somewhere(copy: Path) -> None:
    result = build(copy)
    assert result.returncode == 0, result.stderr
    pages = {path.relative_to(copy / "docs") for path in (copy / "docs").rglob("*.md")}
    names = {page.with_name("index.md" if page.stem == "README" else page.name) for page in pages}
    missing = [
        name for name in names if not (copy / "dist/docs" / name.with_suffix(".html")).exists()
    ]
    assert not missing
