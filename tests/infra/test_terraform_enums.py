"""Values in plans against botocore's service models: Terraform itself lets any string through."""

import re

import pytest

from tests.infra.aws_values import VALUES, accepted, lists_values, refused
from tests.infra.modules import applied
from tests.infra.terraform import Resource


@pytest.mark.parametrize(("service", "shape"), sorted(set(VALUES.values())))
def test_every_row_names_a_shape_that_lists_values(service: str, shape: str) -> None:
    assert lists_values(service, shape)
    assert not accepted(service, shape, "no-such-value")


@pytest.mark.parametrize(
    ("service", "shape", "good", "bad"),
    [
        ("ec2", "VpcEndpointType", "Gateway", "gateway"),
        ("ec2", "VolumeType", "gp3", "gp4"),
        ("logs", "Days", 30, 31),
        ("cloudwatch", "PutMetricAlarmInput.TreatMissingData", "notBreaching", "not_breaching"),
        (
            "ec2",
            "LaunchTemplateInstanceNetworkInterfaceSpecificationRequest.InterfaceType",
            "efa-only",
            "efa_only",
        ),
        ("rds", "CreateDBInstanceMessage.StorageType", "gp3", "gp30"),
        ("sns", "SubscribeInput.Protocol", "email", "mail"),
        ("ec2", "CreateFlowLogsRequest.MaxAggregationInterval", 600, 6),
    ],
)
def test_the_models_tell_right_values_from_wrong_ones(
    service: str, shape: str, good: object, bad: object
) -> None:
    assert accepted(service, shape, good)
    assert not accepted(service, shape, bad)


def test_a_wrong_value_inside_a_block_is_found_and_named() -> None:
    disk = {"root_block_device": [{"volume_type": "gp4"}], "instance_type": "t3.medium"}
    found = refused([Resource("aws_instance.this", "aws_instance", disk)])
    assert found == ["aws_instance.this root_block_device.volume_type = 'gp4' is no ec2 VolumeType"]


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True], ids=["defaults", "everything"])
def test_aws_knows_every_value_of_the_modules(everything: bool) -> None:
    resources = applied(everything)
    assert refused(resources) == []
    # The rows are in use: each type of ours that has rows gave at least one value.
    kinds = {resource.type for resource in resources}
    assert {"aws_db_instance", "aws_vpc_endpoint", "aws_budgets_budget", "aws_flow_log"} <= kinds


@pytest.mark.slow
def test_the_database_class_is_a_machine_that_exists_and_its_family_fits_its_version() -> None:
    [database] = [each for each in applied(False) if each.type == "aws_db_instance"]
    [group] = [each for each in applied(False) if each.type == "aws_db_parameter_group"]
    # RDS has no list of classes; what follows `db.` is named as EC2 names its types.
    assert accepted("ec2", "InstanceType", database.values["instance_class"].removeprefix("db."))
    assert re.fullmatch(r"1[5-7]", database.values["engine_version"])
    assert group.values["family"] == f"postgres{database.values['engine_version']}"
