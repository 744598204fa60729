"""No secret gets into Terraform's plan, its state, or what machines are told at their start."""

import zipfile
from pathlib import Path

import pytest

from tests.infra import clusters, terraform

# Where a secret could leak from: the environment of who runs terraform.
PLANTED = {
    "RAY_AUTH_TOKEN": "planted-ray-token-6f1d",
    "PGPASSWORD": "planted-database-password-a94c",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-password-07be",
    "TF_VAR_token": "planted-token-variable-c3d2",
    "TF_VAR_db_password": "planted-password-variable-58ae",
}


def _written(folder: Path) -> dict[str, bytes]:
    """Every file that terraform left in `folder`, those inside a plan too."""
    found = {}
    for path in folder.iterdir():
        if path.is_file():
            found[path.name] = path.read_bytes()
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as plan:
                found |= {f"{path.name}/{name}": plan.read(name) for name in plan.namelist()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("example", clusters.EXAMPLES)
def test_planted_secrets_are_in_no_plan_no_state_and_no_user_data(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    folder = clusters.prepare(example, tmp_path)
    said = terraform.run(folder, "plan", "-out=first.plan").stdout
    said += terraform.run(folder, "apply", "first.plan").stdout
    shown = terraform.run(folder, "show", "-json").stdout
    resources = terraform.resources(terraform.show(folder))

    written = {**_written(folder), "what it printed": said.encode(), "show": shown.encode()}
    written |= {name: text.encode() for name, text in clusters.user_data(resources).items()}
    assert {"terraform.tfstate", "first.plan/tfplan"} <= set(written)
    # The search finds what is there.
    assert clusters.OWNER.encode() in written["terraform.tfstate"]
    assert clusters.OWNER.encode() in written["first.plan/tfplan"]
    for name, value in PLANTED.items():
        leaked = [place for place, content in written.items() if value.encode() in content]
        assert leaked == [], f"{name} is in {leaked}"


@pytest.mark.slow
@pytest.mark.parametrize("example", clusters.EXAMPLES)
def test_the_state_knows_where_secrets_are_and_no_value(example: str, tmp_path: Path) -> None:
    folder = clusters.prepare(example, tmp_path)
    terraform.run(folder, "apply", "-auto-approve")
    resources = terraform.resources(terraform.show(folder))
    types = {resource.type for resource in resources}
    assert "aws_secretsmanager_secret" in types
    # A version would hold a value.
    assert "aws_secretsmanager_secret_version" not in types
    assert "aws_ssm_parameter" not in types
    databases = [each for each in resources if each.type == "aws_db_instance"]
    assert len(databases) == 1
    for database in databases:
        assert database.values["password"] is None
        assert database.values["manage_master_user_password"] is True
