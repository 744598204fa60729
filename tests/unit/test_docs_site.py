"""The documentation as a site: `make docs` builds it, and a dead link ends the build."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("link", ["no-such-page.md", "results/quickstart.md#no-such-heading"])
def test_a_dead_link_ends_the_build(copy: Path, link: str) -> None:
    with (copy / "docs" / "README.md").open("a") as file:
        file.write(f"\n[a link]({link})\n")
    result = build(copy)
    assert result.returncode != 0
    assert link in result.stderr
