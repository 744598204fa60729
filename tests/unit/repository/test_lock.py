"""uv.lock: the tested versions, from PyPI alone, for the dependencies as they are."""

import re
import tomllib
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.conftest import REPOSITORY

HOSTS = {"pypi.org", "files.pythonhosted.org"}


@cache
def read(name: str) -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / name).read_text("utf-8"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_file_comes_from_pypi() -> None:
    text = (REPOSITORY / "uv.lock").read_text("utf-8")
    assert {urlsplit(url).netloc for url in re.findall(r"https?://[^\"\s]+", text)} == HOSTS


def test_the_versions_are_those_of_the_constraints() -> None:
    locked = {each["name"]: each["version"] for each in read("uv.lock")["package"]}
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").split()
    pinned = dict(line.split("==") for line in lines if not line.startswith(("#", "pip==")))
    assert len(pinned) > 100
    other = {
        name: (version, locked.get(canonical(name)))
        for name, version in pinned.items()
        if locked.get(canonical(name)) != version
    }
    assert other == {}, "lock them: make lock"


def test_it_is_that_of_pyproject() -> None:
    project = read("pyproject.toml")["project"]
    [own] = [each for each in read("uv.lock")["package"] if each["name"] == project["name"]]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}
    wanted = {
        (
            canonical(each.name),
            each.specifier,
            str(each.marker or f'extra == "{extra}"' * bool(extra)),
        )
        for extra, lines in extras.items()
        for each in map(Requirement, lines)
        if each.name != project["name"]
    }
    locked = {
        (
            each["name"],
            SpecifierSet(each.get("specifier", "")),
            each.get("marker", "").replace("'", '"'),
        )
        for each in own["metadata"]["requires-dist"]
        if each["name"] != project["name"]
    }
    assert locked == wanted, "lock them: make lock"


MACHINES = ("x86_64", "AMD64", "aarch64", "arm64", "ppc64le", "s390x", "riscv64", "armv7l", "i686")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("encoder", ["nanotoken", "gigatoken"])
def test_an_encoder_is_wanted_where_it_has_a_wheel(encoder: str, machine: str) -> None:
    lines = map(Requirement, read("pyproject.toml")["project"]["dependencies"])
    [marker] = [each.marker for each in lines if each.name == encoder]
    [package] = [each for each in read("uv.lock")["package"] if each["name"] == encoder]
    wheels = [each["url"] for each in package["wheels"] if "-abi3-" in each["url"]]
    assert marker is not None
    assert marker.evaluate({"platform_machine": machine}) == any(
        url.endswith(f"_{machine.lower()}.whl") for url in wheels
    )
