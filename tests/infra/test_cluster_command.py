"""`rungwise cluster`, with a Terraform that writes down how it is called, and with the real one."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from rungwise.__main__ import main
from rungwise.commands.cluster import cluster
from tests.infra import terraform

OUTPUTS = {
    "artifact_uri": "s3://bucket/rungwise",
    "machines": {
        "head": {"minimum": 1, "maximum": 1, "price_per_hour": 0.25},
        "cpu": {"minimum": 0, "maximum": 4, "price_per_hour": 0.5},
        "gpu": {"minimum": 0, "maximum": 2, "price_per_hour": None},
    },
    "connect": {
        "token": "fetch it",
        "ray": "forward it",
        "submit": "rungwise submit W C --address",
    },
}
IMAGE = "ami-0123456789abcdef0"
ASKED = ["--email", "me@example.org", "--budget", "50", "budget_stops_head=true"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of Terraform in a clone whose package is made, with an account of moto."""
    example = terraform.copy(tmp_path) / "examples" / "cpu-smoke"
    package = tmp_path / "dist" / "rungwise.tar.gz"
    package.parent.mkdir()
    package.write_bytes(b"a package")
    monkeypatch.chdir(tmp_path)
    answer = cluster._call

    def call(service: str, *arguments: Any, **more: Any) -> Any:
        if service == "ssm":  # moto has no images of Ubuntu
            return {"Parameter": {"Value": IMAGE}}
        return answer(service, *arguments, **more)

    monkeypatch.setattr(cluster, "_call", call)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        yield example


@pytest.fixture
def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a program called terraform writes its arguments, a line a call."""
    program, calls = folder.parent / "bin" / "terraform", folder.parent / "calls"
    program.parent.mkdir()
    printed = json.dumps({name: {"value": value} for name, value in OUTPUTS.items()})
    lines = ("#!/bin/sh", f'echo "$*" >>{calls}', f"[ $2 != output ] || echo '{printed}'")
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return calls


def rungwise(action: str, folder: Path, *arguments: str) -> int:
    return main(["cluster", action, "--folder", str(folder), *arguments])


def verbs(calls: Path) -> list[str]:
    return [" ".join(line.split()[1:]) for line in calls.read_text().splitlines()]


def test_create_writes_what_was_asked_plans_applies_and_says_what_to_type(
    folder: Path, calls: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert rungwise("create", folder, "--yes", *ASKED) == 0
    written = json.loads((folder / "terraform.tfvars.json").read_text())
    package = Path(written["package_path"])
    assert package.read_bytes() == b"a package"
    assert written == {
        "region": "eu-central-1",
        "availability_zones": ["eu-central-1a", "eu-central-1b"],
        "ami_id": IMAGE,
        "alert_emails": ["me@example.org"],
        "monthly_budget_usd": 50.0,
        "budget_stops_head": True,
        "package_path": str(package),
        "package_sha256": hashlib.sha256(b"a package").hexdigest(),
    }
    assert verbs(calls) == [
        "init -input=false",
        "plan -input=false -out=rungwise.plan",
        "apply -input=false rungwise.plan",
        "output -json",
    ]
    out = capfd.readouterr().out
    assert "account 123456789012, region eu-central-1" in out
    assert out.rstrip().endswith(OUTPUTS["connect"]["submit"])

    # Again, with another image by then: what was written stays, and one thing changes.
    assert rungwise("create", folder, "--yes", "--budget", "80", "ami_id=ami-1") == 0
    again = json.loads((folder / "terraform.tfvars.json").read_text())
    assert again == written | {"monthly_budget_usd": 80.0, "ami_id": "ami-1"}


def test_nothing_is_done_without_a_yes(
    folder: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert rungwise("create", folder, *ASKED) == 2
    assert "no terminal to ask" in capfd.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, done in (("", False), ("n", False), ("y", True)):
        calls.unlink()
        monkeypatch.setattr("builtins.input", lambda *_, answer=answer: answer)
        assert rungwise("delete", folder) == 0
        assert ("apply -input=false rungwise.plan" in verbs(calls)) == done
        assert "plan -input=false -out=rungwise.plan -destroy" in verbs(calls)


@pytest.mark.usefixtures("calls")
def test_a_protected_cluster_says_how_to_unprotect_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "our clusters"
    folder.mkdir()
    (folder / "variables.tf").touch()
    monkeypatch.setattr(cluster, "_outputs", lambda _: OUTPUTS | {"protected": True})
    assert rungwise("delete", folder) == 2
    command = capfd.readouterr().err.split("`")[1]
    assert shlex.split(command)[-3:] == ["disposable=true", "--folder", str(folder)]


def test_status_adds_up_the_prices_that_are_known(
    folder: Path, calls: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert rungwise("status", folder) == 0
    out = capfd.readouterr().out
    assert "at these prices 0.250 to 2.250 USD an hour" in out
    assert "gpu          0 to 2, price not known" in out
    assert verbs(calls) == ["output -json"]
    # What it advises is what `create` understands.
    _, advised = out.split("rungwise cluster ", 1)
    words = shlex.split(advised.splitlines()[0])
    assert rungwise(words[0], Path(words.pop()), *words[1:-1], "--yes", *ASKED) == 0
    written = json.loads((folder / "terraform.tfvars.json").read_text())
    assert written["prices_per_hour"] == {"head": 0.25, "cpu": 0.5, "gpu": 0}


def test_what_is_missing_is_one_line(
    folder: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(action: str, place: Path, *arguments: str) -> str:
        assert rungwise(action, place, *arguments) == 2
        [line] = capfd.readouterr().err.strip().splitlines()
        return line

    assert "has no variables.tf" in said("create", folder.parent)
    assert "give --email ADDRESS" in said("create", folder)
    Path("dist/rungwise.tar.gz").unlink()
    assert "python3.12 is not on PATH" in said("create", folder, *ASKED)
    monkeypatch.setattr(cluster, "_session", lambda: Nobody)
    assert "no AWS credentials" in said("create", folder, *ASKED)
    monkeypatch.setenv("PATH", str(folder))
    assert "terraform is not on PATH" in said("status", folder)
    assert not calls.exists()


class Nobody:
    """botocore's session of somebody without an account."""

    @staticmethod
    def get_credentials() -> None: ...

    @staticmethod
    def get_config_variable(name: str) -> None: ...


@pytest.mark.slow
def test_a_cluster_comes_and_goes_by_the_real_terraform(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in terraform.environment().items():
        monkeypatch.setenv(name, value)
    assert rungwise("status", folder) == 2
    assert "no cluster in" in capfd.readouterr().err
    assert rungwise("create", folder, "--yes", *ASKED) == 0
    assert "rungwise submit WORKFLOW CONFIG --address" in capfd.readouterr().out
    assert terraform.run(folder, "state", "list").stdout.count("\n") > 50
    assert rungwise("status", folder) == 0
    out = capfd.readouterr().out
    # Listed prices are those of us-east-1, and this is another region.
    assert "cpu          0 to 2, price not known" in out
    prices = 'prices_per_hour={"head": 0.1, "cpu": 0.25}'
    assert rungwise("create", folder, "--yes", prices) == 0
    assert rungwise("status", folder) == 0
    assert "at these prices 0.100 to 0.600 USD an hour" in capfd.readouterr().out
    assert rungwise("delete", folder, "--yes") == 0
    assert terraform.run(folder, "state", "list").stdout == ""
    shutil.rmtree(folder / ".terraform")
    assert rungwise("status", folder) == 2
