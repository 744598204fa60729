"""Terraform for tests: always in a copy of infra/terraform, with a provider that talks to no cloud.

The stand-in for hashicorp/aws knows the provider's schema and nothing of AWS. Tests that need it
skip where terraform or the stand-in is absent.
"""

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

INFRA = REPOSITORY / "infra" / "terraform"
OFFLINE = REPOSITORY.parent / "shared" / "terraform" / "offline.sh"


@dataclass(frozen=True)
class Resource:
    """One managed resource of a plan or a state, with the values of its arguments."""

    address: str
    type: str
    values: dict[str, Any]


@functools.cache
def _provider_setting() -> str:
    printed = subprocess.run(["bash", str(OFFLINE)], capture_output=True, text=True, check=True)
    name, _, value = printed.stdout.strip().removeprefix("export ").partition("=")
    assert name == "TF_CLI_CONFIG_FILE", f"{OFFLINE} printed {printed.stdout!r}"
    return value


def environment() -> dict[str, str]:
    """What terraform should find set: the stand-in provider, no credentials, no colours."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    if not OFFLINE.exists():
        pytest.skip("no provider without a cloud: ../shared/terraform/offline.sh is absent")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    ours = {"TF_CLI_CONFIG_FILE": _provider_setting(), "TF_IN_AUTOMATION": "1", "TF_INPUT": "0"}
    return {**kept, **ours, "TF_CLI_ARGS": "-no-color"}


def run(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`terraform ARGUMENTS` in `folder`; with `check`, a failure shows what terraform printed."""
    finished = subprocess.run(
        ["terraform", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if check:
        said = f"{finished.stdout}\n{finished.stderr}"
        assert finished.returncode == 0, f"terraform {' '.join(arguments)} in {folder}:\n{said}"
    return finished


def copy(place: Path) -> Path:
    """A copy of infra/terraform in `place`, so that no state or lock file lands in the repository,
    with a run for each case of refused.cases.

    Returns the copy, with its modules/ and examples/.
    """
    ignored = shutil.ignore_patterns(".terraform", ".terraform.lock.hcl", "*.tfstate*")
    folder = Path(shutil.copytree(INFRA, place / "terraform", ignore=ignored))
    for file in folder.glob("modules/*/tests/refused.cases"):
        with file.with_suffix(".tftest.hcl").open("a", encoding="utf-8") as stream:
            stream.writelines(_refusal_runs(file.read_text("utf-8")))
    return folder


def _refusal_runs(text: str) -> Iterator[str]:
    """A run for each case in a table of refusals.

    A line is the variable that is refused, or below it `title: value`, in Terraform's language, or
    `title: variable = value ; ...` for other variables too. Below `variable.key`, a value holds
    what differs from the valid object with that key.
    """
    variable, key = "", ""
    for line in filter(None, text.splitlines()):
        if not line.startswith(" "):
            variable, _, key = line.partition(".")
            continue
        title, _, value = line.strip().partition(": ")
        if key:
            value = f"{{ {key} = merge(var.{variable}.{key}, {value}) }}"
        if not re.match(r"\w+ = ", value):
            value = f"{variable} = {value}"
        values = "\n    ".join(value.split(" ; "))
        yield (
            f'\nrun "{title}" {{\n  command = plan\n  variables {{\n    {values}\n  }}\n'
            f"  expect_failures = [var.{variable}]\n}}\n"
        )


def show(folder: Path, plan: str | None = None) -> dict[str, Any]:
    """`terraform show -json` of the state in `folder`, or of the plan file named `plan`."""
    return json.loads(run(folder, "show", "-json", *([plan] if plan else [])).stdout)


def resources(shown: dict[str, Any]) -> list[Resource]:
    """Every managed resource of what `show` gave, those of child modules too."""
    values = shown.get("planned_values") or shown.get("values") or {}
    modules = [values.get("root_module", {})]
    found = []
    while modules:
        module = modules.pop()
        modules += module.get("child_modules", [])
        found += [
            Resource(each["address"], each["type"], each["values"])
            for each in module.get("resources", [])
            if each["mode"] == "managed"
        ]
    return found
