"""The modules and examples of infra/terraform, from `fmt` to an empty state after `destroy`.

No cloud is reached. The provider is a stand-in that knows names, types and references; whether AWS
takes the values is compared with AWS's published service models where they list them.
"""

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rungwise.cluster.description import Machine
from tests.conftest import REPOSITORY
from tests.infra import aws_values, clusters, policies, terraform

MODULES = sorted(path.parent.name for path in terraform.INFRA.glob("modules/*/versions.tf"))
# test_terraform_policies.py runs the tests of the modules below these.
CASES = sorted(
    (module, path.name)
    for module in ("bootstrap", "ray_cluster")
    for path in terraform.INFRA.glob(f"modules/{module}/tests/*.tftest.hcl")
)
USER_DATA_LIMIT = 16 * 1024  # bytes, before base64; EC2's own


@dataclass(frozen=True)
class Applied:
    """An example after `apply`, in `folder`."""

    folder: Path
    plan: dict[str, Any]  # `terraform show -json` of the plan
    resources: list[terraform.Resource]

    def of(self, type_: str) -> list[terraform.Resource]:
        return [resource for resource in self.resources if resource.type == type_]


@pytest.fixture(scope="module", params=clusters.EXAMPLES)
def applied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Applied:
    """The example, planned and applied."""
    folder = clusters.prepare(request.param, tmp_path_factory.mktemp(request.param))
    terraform.run(folder, "plan", "-out=first.plan")
    terraform.run(folder, "apply", "first.plan")
    plan = terraform.show(folder, "first.plan")
    return Applied(folder, plan, terraform.resources(terraform.show(folder)))


def test_every_file_is_in_the_canonical_format() -> None:
    listed = terraform.run(terraform.INFRA, "fmt", "-check", "-recursive", check=False)
    assert listed.stdout == ""
    assert listed.returncode == 0


def test_every_module_has_tests_of_its_own() -> None:
    without = [
        name for name in MODULES if not any(terraform.INFRA.glob(f"modules/{name}/tests/*.hcl"))
    ]
    assert without == []


@pytest.mark.slow
@pytest.mark.parametrize("example", clusters.EXAMPLES)
def test_the_example_and_all_its_modules_are_valid(example: str, tmp_path: Path) -> None:
    terraform.run(clusters.prepare(example, tmp_path), "validate")


@pytest.mark.slow
@pytest.mark.timeout(1200)  # each case starts the stand-in anew
@pytest.mark.parametrize(("module", "name"), CASES)
def test_the_module_passes_its_tests(module: str, name: str, tmp_path: Path) -> None:
    folder = terraform.copy(tmp_path) / "modules" / module
    terraform.run(folder, "init")
    said = terraform.run(folder, "test", f"-filter=tests/{name}").stdout
    assert re.search(r"Success! [1-9]\d* passed, 0 failed", said), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"efa_cards": 4}, "a group with EFA cannot be spot"),
        (
            {"capacity_reservation_id": "cr-0123456789abcdef0"},
            "a group in a reservation cannot be spot",
        ),
    ],
)
def test_what_breaks_two_rules_at_once_hears_of_the_one_that_matters(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = terraform.copy(tmp_path) / "modules" / "ray_cluster"
    group = {"instance_types": ["p4d.24xlarge"], "ami_id": "ami-0123456789abcdef0", "maximum": 2}
    group |= {"cpus": 96, "gpus": 8, "spot": True, "availability_zone": "us-east-1a", **more}
    terraform.run(folder, "init")
    planned = terraform.run(
        folder,
        "plan",
        "-var-file=tests/terraform.tfvars",
        f"-var=worker_groups={json.dumps({'gpu': group})}",
        check=False,
    )
    assert planned.returncode == 1
    assert said in " ".join(planned.stderr.split())


@pytest.mark.slow
def test_a_second_plan_finds_no_difference(applied: Applied) -> None:
    assert "No changes." in terraform.run(applied.folder, "plan", "-detailed-exitcode").stdout


@pytest.mark.slow
def test_what_rays_autoscaler_sets_is_left_alone_and_a_changed_maximum_is_not(
    applied: Applied, tmp_path: Path
) -> None:
    folder = _copied(applied, tmp_path)
    state = folder / "terraform.tfstate"

    def change(attribute: str) -> subprocess.CompletedProcess[str]:
        content = json.loads(state.read_text(encoding="utf-8"))
        for resource in content["resources"]:
            if resource["type"] == "aws_autoscaling_group":
                for instance in resource["instances"]:
                    instance["attributes"][attribute] += 1
        state.write_text(json.dumps(content), encoding="utf-8")
        return terraform.run(folder, "plan", "-detailed-exitcode", check=False)

    scaled = change("desired_capacity")
    assert scaled.returncode == 0, scaled.stdout
    widened = change("max_size")
    assert widened.returncode == 2, widened.stdout


@pytest.mark.slow
def test_destroy_leaves_nothing_in_the_state(applied: Applied, tmp_path: Path) -> None:
    folder = _copied(applied, tmp_path)
    assert terraform.run(folder, "state", "list").stdout.count("\n") > 50
    terraform.run(folder, "destroy", "-auto-approve")
    assert terraform.run(folder, "state", "list").stdout == ""


def _copied(applied: Applied, place: Path) -> Path:
    """What was applied, with its state, so that tests do not change each other's."""
    root = applied.folder.parents[1]
    copy = Path(shutil.copytree(root, place / "terraform", symlinks=True))
    return copy / "examples" / applied.folder.name


@pytest.mark.slow
def test_every_machine_is_told_what_the_package_can_read(applied: Applied) -> None:
    scripts = clusters.user_data(applied.resources)
    machines = []
    for address, script in scripts.items():
        assert len(script.encode()) < USER_DATA_LIMIT, address
        told = clusters.machine(script)
        if told["role"] == "tracking":
            # RDS names its secret when it makes it; the stand-in makes none.
            assert told["database"]["secret"] is None
            told["database"]["secret"] = "arn:aws:secretsmanager:us-east-1:123456789012:secret:db"
        machines.append(Machine.model_validate(told))

    head = next(machine for machine in machines if machine.role == "head")
    workers = {machine.group: machine for machine in machines if machine.role == "worker"}
    assert [machine.role for machine in machines].count("tracking") == 1
    assert head.scaling is not None
    assert set(head.scaling.groups) == set(workers)
    assert head.resources["CPU"] == 0
    for name, worker in workers.items():
        group = head.scaling.groups[name]
        assert (group.resources, group.labels) == (worker.resources, worker.labels)
        assert group.price_per_hour == worker.price_per_hour is not None
        assert worker.head_address == f"head.{head.cluster}.internal"
        assert worker.token_secret == head.token_secret
        assert worker.artifact_uri == head.artifact_uri


@pytest.mark.slow
def test_an_image_with_the_package_fits_every_machine_of_the_smoke_cluster(tmp_path: Path) -> None:
    folder = clusters.prepare("cpu-smoke", tmp_path)
    terraform.run(folder, "apply", "-auto-approve", "-var=make_image=true")
    sizes = {}
    for resource in terraform.resources(terraform.show(folder)):
        if resource.type == "aws_instance":
            sizes[resource.address] = resource.values["root_block_device"][0]["volume_size"]
        if resource.type == "aws_launch_template":
            disk = resource.values["block_device_mappings"][0]["ebs"][0]
            sizes[resource.address] = disk["volume_size"]
    # EC2 starts no machine whose root volume is smaller than the image's.
    assert sizes["module.image[0].aws_instance.this"] == min(sizes.values())
    assert len(sizes) == 4


@pytest.mark.slow
def test_nothing_has_a_public_address_a_key_pair_or_an_open_port(applied: Applied) -> None:
    for instance in applied.of("aws_instance"):
        assert instance.values["associate_public_ip_address"] is False, instance.address
        assert instance.values["metadata_options"][0]["http_tokens"] == "required"
    for template in applied.of("aws_launch_template"):
        interfaces = template.values["network_interfaces"]
        public = {each["associate_public_ip_address"] for each in interfaces}
        assert public == ({"false"} if len(interfaces) == 1 else {None}), template.address
        assert template.values["metadata_options"][0]["http_tokens"] == "required"
    for subnet in applied.of("aws_subnet"):
        assert subnet.values["map_public_ip_on_launch"] is False, subnet.address
    for rule in applied.of("aws_vpc_security_group_ingress_rule"):
        assert rule.values["referenced_security_group_id"], rule.address
        assert rule.values["cidr_ipv4"] is None, rule.address
        assert rule.values["cidr_ipv6"] is None, rule.address
    for rule in applied.of("aws_vpc_security_group_egress_rule"):
        assert rule.values["cidr_ipv4"] is None, rule.address
    for group in applied.of("aws_security_group"):
        assert group.values["ingress"] in (None, []), group.address
    assert applied.of("aws_internet_gateway") == []
    assert applied.of("aws_eip") == []
    # A key pair is computed where none is given, so look at what was written.
    configured = list(_configured(applied.plan["configuration"]["root_module"]))
    assert any(each["type"] == "aws_instance" for each in configured)
    keyed = [each["address"] for each in configured if "key_name" in each.get("expressions", {})]
    assert keyed == []


def _configured(module: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from module.get("resources", [])
    for call in module.get("module_calls", {}).values():
        yield from _configured(call["module"])


# Things with no other name: objects of a folder, log groups and their streams, and instances that
# an autoscaling group has yet to start.
MANY = (
    r"[^*]+/rungwise/\*",
    r"arn:[^*]+:logs:[^*]+:log-group:[^*]*\*",
    r"arn:[^*]+:ec2:[^*]+:instance/\*",
)


@pytest.mark.slow
def test_policies_name_whole_actions_and_the_resources_they_are_for(applied: Applied) -> None:
    assert policies.faults(applied.resources) == []
    roles = policies.documents(applied.of("aws_iam_role_policy"))
    assert len(roles) >= 3
    for document in roles:
        for statement in document.statements:
            for resource in statement["Resource"] or []:  # the stand-in has no database secret
                named = "*" not in resource or any(re.fullmatch(many, resource) for many in MANY)
                assert named or resource == "*", (document.resource.address, resource)


# What only a cluster's machines have, beside what the other modules use.
MACHINES: aws_values.Table = {
    ("aws_autoscaling_group", "mixed_instances_policy.launch_template.override.instance_type"): (
        "ec2",
        "InstanceType",
    ),
    ("aws_autoscaling_group", "suspended_processes"): (
        "autoscaling",
        "ScalingProcessQuery.ScalingProcesses",
    ),
    ("aws_instance", "maintenance_options.auto_recovery"): ("ec2", "InstanceAutoRecoveryState"),
    ("aws_launch_template", "instance_initiated_shutdown_behavior"): ("ec2", "ShutdownBehavior"),
}


@pytest.mark.slow
def test_aws_knows_every_fixed_value_of_the_examples(applied: Applied) -> None:
    assert aws_values.refused(applied.resources, {**aws_values.VALUES, **MACHINES}) == []
    kept = applied.of("aws_autoscaling_group")[0]
    wrong = dataclasses.replace(kept, values={**kept.values, "suspended_processes": ["AZBalance"]})
    assert len(aws_values.refused([wrong], MACHINES)) == 1


@pytest.mark.slow
def test_the_connect_commands_run_and_put_the_token_into_a_private_file(
    applied: Applied, tmp_path: Path
) -> None:
    commands = json.loads(terraform.run(applied.folder, "output", "-json", "connect").stdout)
    # Stand-ins that write down how they were called.
    for name, answer in (("aws", "the-token"), ("rungwise", "$RAY_AUTH_MODE $RAY_AUTH_TOKEN_PATH")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>"$HOME/called"\necho "{answer}"\n')
        program.chmod(0o755)
    environment = {"HOME": str(tmp_path), "PATH": f"{program.parent}:/usr/bin:/bin"}

    def paste(command: str) -> str:
        ran = subprocess.run(
            ["bash", "-c", command], env=environment, capture_output=True, text=True, check=True
        )
        return ran.stdout

    assert paste(commands["token"]) == ""
    [token] = (tmp_path / ".ray").iterdir()
    assert token.read_text() == "the-token\n"
    assert token.stat().st_mode & 0o777 == 0o600
    assert paste(commands["submit"]) == f"token {token}\n"
    ports = {"ray": "8265", "mlflow": "5000", "prometheus": "9090", "grafana": "3000"}
    for name, port in ports.items():
        paste(commands[name])
        forwarded = json.loads((tmp_path / "called").read_text().splitlines()[-1])
        assert forwarded == {"portNumber": [port], "localPortNumber": [port]}


@pytest.mark.slow
def test_checkov_finds_nothing_that_is_not_explained() -> None:
    checkov = shutil.which("checkov") or shutil.which(
        "checkov", path=str(REPOSITORY / ".venv-checkov" / "bin")
    )
    if checkov is None:
        pytest.skip("checkov is not installed: make check-infra makes it an environment")
    command = [checkov, "--directory", str(terraform.INFRA), "--framework", "terraform"]
    command += ["--skip-download", "--compact", "--output", "json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    report = json.loads(found.stdout)
    results = report["results"]
    assert [(each["check_id"], each["resource"]) for each in results["failed_checks"]] == []
    assert len(results["passed_checks"]) > 100
    for skipped in results["skipped_checks"]:
        reason = skipped["check_result"]["suppress_comment"]
        assert len(reason) > 20, (skipped["check_id"], skipped["resource"], reason)
