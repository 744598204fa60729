"""Every validation of every variable has a case that it alone refuses.

Terraform's `expect_failures` asks only that a variable is refused, by whichever of its validations.
So each validation is made to accept everything, and a case of that variable must then fail.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.infra import terraform

MODULES = ("network", "storage", "tracking", "guardrails", "image")


@dataclass(frozen=True)
class Validation:
    """The `number`-th validation of a variable, and where its condition stands in the file."""

    variable: str
    number: int
    start: int
    end: int


def validations(text: str) -> list[Validation]:
    """The validations in a formatted .tf file."""
    found = []
    variable, number = "", 0
    pattern = r'^variable "(\w+)"|^  validation \{.*?^ +(condition +=.*?)(?=^ +error_message)'
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        if match[1]:
            variable, number = match[1], 0
        else:
            found.append(Validation(variable, number, match.start(2), match.end(2)))
            number += 1
    return found


def accepting(text: str, number: int) -> str:
    """`text` with the `number`-th validation of each variable accepting everything."""
    for each in reversed(validations(text)):
        if each.number == number:
            same = f"condition = var.{each.variable} == var.{each.variable}\n"
            text = text[: each.start] + same + text[each.end :]
    return text


def cases(folder: Path) -> dict[tuple[str, str], str]:
    """(test file, run) -> the variable that the run expects to be refused."""
    pattern = r'^run "(\w+)" \{(?:(?!^\}).)*?expect_failures = \[var\.(\w+)\]'
    return {
        (f"tests/{path.name}", match[1]): match[2]
        for path in sorted((folder / "tests").glob("*.tftest.hcl"))
        for match in re.finditer(pattern, path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    }


def failing(folder: Path, files: set[str]) -> set[tuple[str, str]]:
    """(test file, run) of the runs in these test files that do not pass."""
    filters = [f"-filter={name}" for name in sorted(files)]
    printed = terraform.run(folder, "test", "-json", *filters, check=False).stdout
    events = [json.loads(line) for line in printed.splitlines()]
    done = [each["test_run"] for each in events if each.get("type") == "test_run"]
    done = [each for each in done if each.get("progress") == "complete"]
    assert done, printed
    return {(each["path"], each["run"]) for each in done if each["status"] != "pass"}


def test_validations_and_cases_are_found_in_the_files(tmp_path: Path) -> None:
    folder = terraform.copy(tmp_path) / "modules" / "network"
    text = (folder / "variables.tf").read_text("utf-8")
    assert len(validations(text)) == text.count("validation {")
    changed = accepting(text, 0)
    assert len(validations(changed)) == len(validations(text))
    assert "condition = var.cidr == var.cidr" in changed
    assert cases(folder)["tests/refused.tftest.hcl", "public_addresses_are_refused"] == "cidr"


@pytest.mark.slow
@pytest.mark.timeout(1200)  # minutes on an idle machine: every case runs up to four times
@pytest.mark.parametrize("module", MODULES)
def test_each_validation_is_the_only_one_to_refuse_some_case(module: str, tmp_path: Path) -> None:
    folder = terraform.copy(tmp_path) / "modules" / module
    terraform.run(folder, "init")
    variables = folder / "variables.tf"
    text = variables.read_text("utf-8")
    expected = cases(folder)
    files = {name for name, _ in expected}
    assert failing(folder, files) == set()
    unproved = []
    for number in range(1 + max(each.number for each in validations(text))):
        variables.write_text(accepting(text, number))
        failed = {expected[run] for run in failing(folder, files) if run in expected}
        changed = {each.variable for each in validations(text) if each.number == number}
        unproved += [f"{name}, validation {number + 1}" for name in sorted(changed - failed)]
    assert unproved == []
