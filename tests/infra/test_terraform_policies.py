"""What the modules allow: policies without wildcards, groups without addresses, nothing public."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.infra import terraform
from tests.infra.modules import applied, written
from tests.infra.policies import documents, exists, faults
from tests.infra.terraform import Resource

WAYS = pytest.mark.parametrize("everything", [False, True], ids=["defaults", "everything"])
MODULES = ("network", "storage", "tracking", "guardrails", "image")


def policy(kind: str = "aws_iam_role_policy", **statement: Any) -> list[Resource]:
    """A resource with one statement, which allows unless it says otherwise."""
    whole = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [whole | statement]})
    return [Resource(f"{kind}.this", kind, {"policy": document})]


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ({"Action": "*"}, "* is not one action"),
        ({"Action": ["s3:GetObject", "s3:Put*"]}, "s3:Put* is not one action"),
        ({"Action": "s3:GetObjekt"}, "s3:GetObjekt is no action of AWS"),
        ({"Resource": "*"}, 's3:GetObject could name a resource and has "*"'),
        ({"Resource": ["arn:aws:s3:::b/*", "*"]}, 's3:GetObject could name a resource and has "*"'),
        ({"NotAction": "iam:PassRole"}, "allows all but what NotAction names"),
        ({"Principal": "*"}, "is for everybody"),
        ({"Principal": {"AWS": ["*"]}}, "is for everybody"),
        (
            {"Principal": {"AWS": "arn:aws:iam::123456789012:root", "Service": "*"}},
            "is for everybody",
        ),
    ],
)
def test_a_policy_that_allows_too_much_is_found(statement: dict[str, Any], fault: str) -> None:
    assert faults(policy(**statement)) == [f"aws_iam_role_policy.this policy: {fault}"]


def test_what_is_narrow_or_takes_away_is_no_fault() -> None:
    assert faults(policy()) == []
    assert faults(policy(Effect="Deny", Action="s3:*", Principal="*", Resource="*")) == []
    assert faults(policy(Action="ec2:DescribeInstances", Resource="*")) == []
    assert faults(policy("aws_kms_key", Action="kms:Decrypt", Resource="*")) == []


def test_an_endpoint_for_everybody_is_bound_to_one_account() -> None:
    one = {"aws:PrincipalAccount": "123456789012", "aws:ResourceAccount": "123456789012"}
    bound = {"Principal": "*", "Condition": {"StringEquals": one}}
    assert faults(policy("aws_vpc_endpoint", **bound)) == []
    assert faults(policy("aws_s3_bucket_policy", **bound)) != []
    assert faults(policy("aws_vpc_endpoint", Principal="*")) != []


def test_actions_are_those_of_the_api_and_of_the_permissions_beside_it() -> None:
    known = ["kms:GenerateDataKeyWithoutPlaintext", "ssm:StartAutomationExecution", "s3:ListBucket"]
    assert all(exists(action) for action in known)
    unknown = ["kms:ReEncrypt", "s3:HeadObject", "ssm:Stop", "nothing:GetObject"]
    assert not any(exists(action) for action in unknown)


@pytest.mark.slow
@WAYS
def test_no_policy_of_the_modules_allows_more_than_it_names(everything: bool) -> None:
    resources = applied(everything)
    assert faults(resources) == []
    kinds = {document.resource.type for document in documents(resources)}
    assert kinds == {
        "aws_iam_role",
        "aws_iam_role_policy",
        "aws_kms_key",
        "aws_s3_bucket_policy",
        "aws_sns_topic_policy",
        "aws_vpc_endpoint",
    }


@pytest.mark.slow
@WAYS
def test_roles_are_taken_by_services_and_by_nobody_else(everything: bool) -> None:
    roles = [each for each in applied(everything) if each.type == "aws_iam_role"]
    assert roles
    for role in roles:
        for statement in json.loads(role.values["assume_role_policy"])["Statement"]:
            assert statement["Action"] == "sts:AssumeRole", role.address
            assert set(statement["Principal"]) == {"Service"}, role.address


@pytest.mark.slow
@WAYS
def test_nobody_comes_in_by_an_address(everything: bool) -> None:
    rules = [each for each in applied(everything) if "security_group" in each.type]
    assert {each.type for each in rules} >= {
        "aws_default_security_group",
        "aws_security_group",
        "aws_vpc_security_group_egress_rule",
        "aws_vpc_security_group_ingress_rule",
    }
    for rule in rules:
        if rule.type.endswith("_rule"):
            assert not rule.values["cidr_ipv4"], rule.address
            assert not rule.values["cidr_ipv6"], rule.address
        else:
            assert not rule.values["ingress"], rule.address
            assert not rule.values["egress"], rule.address


@pytest.mark.slow
@WAYS
def test_nothing_is_public(everything: bool) -> None:
    resources = applied(everything)
    for resource in resources:
        assert not resource.values.get("map_public_ip_on_launch"), resource.address
        assert not resource.values.get("publicly_accessible"), resource.address
        assert not resource.values.get("associate_public_ip_address"), resource.address
    kinds = {each.type for each in resources}
    assert ("aws_internet_gateway" in kinds) == everything
    # The one address is that of the gateway, through which nobody comes in.
    assert [each.type for each in resources].count("aws_eip") == int(everything)
    routes = [each for each in resources if each.values.get("destination_cidr_block")]
    assert len(routes) == 2 * everything


@pytest.mark.slow
@WAYS
def test_what_is_kept_is_encrypted_by_a_key_of_ours(everything: bool) -> None:
    resources = applied(everything)
    keys = {each.values["arn"] for each in resources if each.type == "aws_kms_key"}
    argument = {
        "aws_cloudwatch_log_group": "kms_key_id",
        "aws_db_instance": "kms_key_id",
        "aws_s3_object": "kms_key_id",
        "aws_sns_topic": "kms_master_key_id",
    }
    kept = [each for each in resources if each.type in argument]
    assert {each.type for each in kept} == set(argument)
    for each in kept:
        assert each.values[argument[each.type]] in keys, each.address
    for key in (each for each in resources if each.type == "aws_kms_key"):
        assert key.values["enable_key_rotation"], key.address


@pytest.mark.slow
@WAYS
def test_a_second_plan_changes_nothing_and_destroy_leaves_nothing(
    tmp_path: Path, everything: bool
) -> None:
    root = written(tmp_path, everything)
    terraform.run(root, "init")
    terraform.run(root, "apply", "-auto-approve")
    again = terraform.run(root, "plan", "-detailed-exitcode", check=False)
    assert again.returncode == 0, again.stdout
    terraform.run(root, "destroy", "-auto-approve")
    assert terraform.resources(terraform.show(root)) == []


@pytest.mark.slow
def test_no_password_is_in_the_state() -> None:
    [database] = [each for each in applied(True) if each.type == "aws_db_instance"]
    assert database.values["manage_master_user_password"] is True
    for name in ("password", "password_wo"):
        assert not database.values[name]


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_formatted_and_use_the_one_provider(module: str) -> None:
    folder = terraform.INFRA / "modules" / module
    terraform.run(folder, "fmt", "-check", "-recursive", "-diff", str(folder))
    text = "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("*.tf")))
    sources = set(re.findall(r'^ *source += "(.+)"$', text, re.MULTILINE))
    assert sources - {"../bootstrap"} == {"hashicorp/aws"}
    assert '">= 6.25, < 7.0"' in text
    assert "key_name" not in text  # a key pair would be a second way in
    assert "arn:aws:" not in text  # data.aws_partition has the partition


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute on an idle machine, minutes on a busy one
@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_valid_and_passes_its_own_tests(module: str, tmp_path: Path) -> None:
    folder = terraform.copy(tmp_path) / "modules" / module
    if module == "tracking" and not (folder.parent / "bootstrap").is_dir():
        pytest.fail("tracking uses modules/bootstrap, which is absent")
    terraform.run(folder, "init")
    terraform.run(folder, "validate")
    terraform.run(folder, "test")
