"""infra/terraform, from `fmt` to an empty state after `destroy`.

No cloud is reached: the provider is a stand-in that knows names, types and references. Whether AWS
takes a value is compared with AWS's published service models where they list it.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.infra import aws_values, policies, terraform
from tests.infra.terraform import Resource

pytestmark = pytest.mark.slow

OWNER = "owner@example.org"
RESERVATION = "cr-0123456789abcdef0"
VARIABLES: dict[str, dict[str, Any]] = {
    "cpu-smoke": {"api_cidrs": []},
    "gpu-efa": {
        "api_cidrs": ["203.0.113.7/32"],
        "gpu_zone": "us-east-1b",
        "capacity_reservation_id": RESERVATION,
        "capacity_block": True,
    },
}
# Where a secret could leak from: the environment of whoever runs terraform.
SECRETS = {"PGPASSWORD": "planted-database-a94c", "TF_VAR_db_password": "planted-variable-58ae"}
# AWS's own policies, of its services' roles alone.
MANAGED = {
    "AmazonEBSCSIDriverPolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKSClusterPolicy",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
}


@dataclass(frozen=True)
class Applied:
    """An example after `apply`, in `folder`."""

    folder: Path
    printed: str
    resources: list[Resource]

    def select(self, type_: str) -> list[Resource]:
        return [resource for resource in self.resources if resource.type == type_]


@pytest.fixture(scope="module", params=VARIABLES)
def applied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Applied:
    folder = terraform.copy(tmp_path_factory.mktemp("infra")) / "examples" / request.param
    variables = {"alert_emails": [OWNER], **VARIABLES[request.param]}
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables), encoding="utf-8")
    terraform.run(folder, "init")
    terraform.run(folder, "validate")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        printed = terraform.run(folder, "plan", "-out=first.plan").stdout
        printed += terraform.run(folder, "apply", "first.plan").stdout
    return Applied(folder, printed, terraform.resources(terraform.show(folder)))


def test_every_file_is_in_the_canonical_format() -> None:
    assert terraform.run(terraform.INFRA, "fmt", "-check", "-recursive").stdout == ""


def test_a_second_plan_finds_no_difference(applied: Applied) -> None:
    assert "No changes." in terraform.run(applied.folder, "plan", "-detailed-exitcode").stdout


def test_destroy_leaves_nothing_in_the_state(applied: Applied, tmp_path: Path) -> None:
    root = Path(shutil.copytree(applied.folder.parents[1], tmp_path / "copy", symlinks=True))
    folder = root / "examples" / applied.folder.name
    assert terraform.run(folder, "state", "list").stdout.count("\n") > 50
    terraform.run(folder, "destroy", "-auto-approve")
    assert terraform.run(folder, "state", "list").stdout == ""


def test_the_size_that_the_autoscaler_sets_is_left_alone(applied: Applied, tmp_path: Path) -> None:
    root = Path(shutil.copytree(applied.folder.parents[1], tmp_path / "copy", symlinks=True))
    folder = root / "examples" / applied.folder.name

    def change(name: str) -> int:
        state = json.loads((folder / "terraform.tfstate").read_text("utf-8"))
        for resource in state["resources"]:
            if resource["type"] == "aws_eks_node_group":
                for instance in resource["instances"]:
                    instance["attributes"]["scaling_config"][0][name] += 1
        (folder / "terraform.tfstate").write_text(json.dumps(state), encoding="utf-8")
        return terraform.run(folder, "plan", "-detailed-exitcode", check=False).returncode

    assert change("desired_size") == 0
    assert change("max_size") == 2


def test_nothing_is_public(applied: Applied) -> None:
    for rule in applied.select("aws_vpc_security_group_ingress_rule"):
        assert (rule.values["cidr_ipv4"], rule.values["cidr_ipv6"]) == (None, None), rule.address
    for group in [
        *applied.select("aws_security_group"),
        *applied.select("aws_default_security_group"),
    ]:
        assert group.values["ingress"] in (None, []), group.address
    for subnet in applied.select("aws_subnet"):
        assert subnet.values["map_public_ip_on_launch"] is False, subnet.address
    [block] = applied.select("aws_s3_bucket_public_access_block")
    kinds = ("block_public_acls", "block_public_policy", "ignore_public_acls")
    assert all(block.values[kind] for kind in (*kinds, "restrict_public_buckets"))
    [database] = applied.select("aws_db_instance")
    assert database.values["publicly_accessible"] is False
    [cluster] = applied.select("aws_eks_cluster")
    network = cluster.values["vpc_config"][0]
    assert network["endpoint_private_access"] is True
    cidrs = VARIABLES[applied.folder.name]["api_cidrs"]
    assert network["endpoint_public_access"] is bool(cidrs)
    assert network["public_access_cidrs"] == (cidrs or None)


def test_everything_is_encrypted_by_the_key(applied: Applied) -> None:
    [key] = applied.select("aws_kms_key")
    assert key.values["enable_key_rotation"] is True
    arn = key.values["arn"]
    [cluster] = applied.select("aws_eks_cluster")
    assert cluster.values["encryption_config"][0]["provider"][0]["key_arn"] == arn
    [database] = applied.select("aws_db_instance")
    assert database.values["storage_encrypted"] is True
    assert database.values["kms_key_id"] == database.values["master_user_secret_kms_key_id"] == arn
    [repository] = applied.select("aws_ecr_repository")
    assert repository.values["encryption_configuration"][0]["kms_key"] == arn
    [bucket] = applied.select("aws_s3_bucket_server_side_encryption_configuration")
    default = bucket.values["rule"][0]["apply_server_side_encryption_by_default"][0]
    assert default["kms_master_key_id"] == arn
    logs = applied.select("aws_cloudwatch_log_group")
    assert len(logs) == 1
    assert {each.values["kms_key_id"] for each in logs} == {arn}
    for template in applied.select("aws_launch_template"):
        assert template.values["block_device_mappings"][0]["ebs"][0]["encrypted"] == "true"
        assert template.values["metadata_options"][0]["http_tokens"] == "required"
        assert template.values["metadata_options"][0]["http_put_response_hop_limit"] == 1


def test_policies_name_whole_actions_and_the_resources_they_are_for(applied: Applied) -> None:
    assert policies.faults(applied.resources) == []
    assert len(policies.documents(applied.select("aws_iam_role_policy"))) == 4
    attached = applied.select("aws_iam_role_policy_attachment")
    names = {each.values["policy_arn"].rpartition("/")[2] for each in attached}
    assert names == MANAGED


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ({"Action": "*"}, "* is not one action"),
        ({"Action": ["s3:GetObject", "s3:Put*"]}, "s3:Put* is not one action"),
        ({"Action": "s3:GetObjekt"}, "s3:GetObjekt is no action of AWS"),
        ({"Resource": "*"}, 's3:GetObject could name a resource and has "*"'),
        ({"NotAction": "iam:PassRole"}, "allows all but what NotAction names"),
        ({"Principal": {"AWS": ["*"]}}, "is for everybody"),
    ],
)
def test_a_policy_that_allows_too_much_is_found(statement: dict[str, Any], fault: str) -> None:
    whole = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}
    text = json.dumps({"Statement": [whole | statement]})
    resource = Resource("aws_iam_role_policy.this", "aws_iam_role_policy", {"policy": text})
    assert policies.faults([resource]) == [f"aws_iam_role_policy.this policy: {fault}"]


def test_pods_reach_the_prefix_of_the_bucket_alone(applied: Applied) -> None:
    [bucket] = applied.select("aws_s3_bucket")
    roles = policies.documents(applied.select("aws_iam_role_policy"))
    objects = [
        statement
        for role in roles
        for statement in role.statements
        if any(action.startswith("s3:") for action in policies.listed(statement["Action"]))
    ]
    assert len(objects) == 4  # objects and list, of Ray and of MLflow
    for statement in objects:
        prefix = f"{bucket.values['arn']}/rungwise/*"
        if statement["Action"] == "s3:ListBucket":
            assert statement["Condition"]["StringLike"]["s3:prefix"] == ["rungwise", "rungwise/*"]
        else:
            assert statement["Resource"] == prefix
        assert "aws:SourceVpce" in statement["Condition"]["StringEquals"]


def test_aws_knows_every_fixed_value(applied: Applied) -> None:
    assert aws_values.refused(applied.resources) == []
    [database] = applied.select("aws_db_instance")
    wrong = Resource("a", "aws_db_instance", {**database.values, "storage_type": "gp30"})
    assert len(aws_values.refused([wrong])) == 1


def test_gpu_nodes_have_their_network_cards_in_one_placement_group(applied: Applied) -> None:
    templates = {each.values["name"]: each.values for each in applied.select("aws_launch_template")}
    if applied.folder.name == "cpu-smoke":
        assert all(not each["network_interfaces"] for each in templates.values())
        return
    gpu = templates["train-gpu-efa"]
    cards = [
        (each["network_card_index"], each["device_index"], each["interface_type"])
        for each in gpu["network_interfaces"]
    ]
    rest = [(card, 0, "efa-only") for card in range(1, 32)]
    assert cards == [(0, 0, "interface"), (0, 1, "efa-only"), *rest]
    [placement] = applied.select("aws_placement_group")
    assert placement.values["strategy"] == "cluster"
    assert gpu["placement"][0]["group_name"] == placement.values["name"]
    target = gpu["capacity_reservation_specification"][0]["capacity_reservation_target"][0]
    assert target["capacity_reservation_id"] == RESERVATION
    assert gpu["instance_type"] == "p5.48xlarge"
    groups = {each.values["node_group_name"]: each for each in applied.select("aws_eks_node_group")}
    assert groups["gpu-efa"].values["capacity_type"] == "CAPACITY_BLOCK"
    assert groups["gpu-efa"].values["taint"][0]["key"] == "nvidia.com/gpu"
    assert len(groups["gpu-efa"].values["subnet_ids"]) == 1


def test_the_outputs_print_what_to_type_next(applied: Applied) -> None:
    printed = terraform.run(applied.folder, "output", "-json", "platform").stdout
    outputs = json.loads(printed)
    assert outputs["connect"].startswith("aws eks update-kubeconfig --region us-east-1 --name ")
    first, *_, last = outputs["install"]
    assert first.startswith("helm upgrade --install kuberay-operator ")
    overlay = {"cpu-smoke": "cpu", "gpu-efa": "gpu-efa"}[applied.folder.name]
    assert last == f"kubectl apply -k infra/kuberay/overlays/{overlay}"
    plugins = sum("device-plugin" in command for command in outputs["install"])
    assert plugins == (2 if applied.folder.name == "gpu-efa" else 0)


def test_no_secret_is_in_plan_state_or_output(applied: Applied) -> None:
    written = {**_files(applied.folder), "printed": applied.printed.encode()}
    assert OWNER.encode() in written["terraform.tfstate"]  # the search finds what is there
    for name, value in SECRETS.items():
        assert [place for place, text in written.items() if value.encode() in text] == [], name
    assert not {"aws_secretsmanager_secret_version", "aws_ssm_parameter"} & {
        each.type for each in applied.resources
    }
    [database] = applied.select("aws_db_instance")
    assert database.values["password"] is None
    assert database.values["manage_master_user_password"] is True


def _files(folder: Path) -> dict[str, bytes]:
    """Every file that terraform left in `folder`, those inside a plan too."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with zipfile.ZipFile(folder / "first.plan") as plan:
        return files | {f"first.plan/{name}": plan.read(name) for name in plan.namelist()}


@pytest.mark.timeout(1200)  # each case starts the stand-in anew
def test_the_module_passes_its_tests_and_refuses_every_case(tmp_path: Path) -> None:
    folder = terraform.copy(tmp_path) / "modules" / "platform"
    terraform.run(folder, "init")
    printed = terraform.run(folder, "test").stdout
    count = re.search(r"Success! (\d+) passed, 0 failed", printed)
    cases = (folder / "tests" / "refused.cases").read_text("utf-8").count("\n  ")
    assert count, printed
    assert int(count[1]) == cases + 1


def test_every_variable_with_a_validation_has_a_case() -> None:
    module = terraform.INFRA / "modules" / "platform"
    text = (module / "variables.tf").read_text("utf-8")
    cases = (module / "tests" / "refused.cases").read_text("utf-8")
    validated = dict(_validations(text))
    assert len(validated) > 10
    for name, number in validated.items():
        refused = re.search(
            rf"^{name}(?:\.\w+)?\n((?:  .*\n)+)(?:{name}\.\w+\n((?:  .*\n)+))?", cases, re.M
        )
        assert refused, name
        assert sum((part or "").count("\n") for part in refused.groups()) >= number, name


def _validations(text: str) -> Iterator[tuple[str, int]]:
    """Each variable that refuses values, and its number of validations."""
    for name, body in re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.M | re.S):
        if number := body.count("validation {"):
            yield name, number
