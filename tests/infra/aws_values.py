"""Values that AWS takes for an argument, out of botocore's service models.

Terraform and the stand-in let any string through. The models list what the API accepts, as an
enum, or, where the API's own type is a plain string or number, in the argument's documentation.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import botocore.session
from botocore.model import Shape, StructureShape

from tests.infra.terraform import Resource

# (resource type, path of the argument) -> (service, shape), or (service, "Structure.Member") where
# the values stand with one member of a structure. A path goes through nested blocks by itself.
Table = dict[tuple[str, str], tuple[str, str]]
VALUES: Table = {
    ("aws_budgets_budget", "budget_type"): ("budgets", "BudgetType"),
    ("aws_budgets_budget", "notification.comparison_operator"): ("budgets", "ComparisonOperator"),
    ("aws_budgets_budget", "notification.notification_type"): ("budgets", "NotificationType"),
    ("aws_budgets_budget", "notification.threshold_type"): ("budgets", "ThresholdType"),
    ("aws_cloudwatch_log_group", "retention_in_days"): ("logs", "Days"),
    ("aws_db_instance", "engine"): ("rds", "CreateDBInstanceMessage.Engine"),
    ("aws_db_instance", "storage_type"): ("rds", "CreateDBInstanceMessage.StorageType"),
    ("aws_ecr_repository", "encryption_configuration.encryption_type"): ("ecr", "EncryptionType"),
    ("aws_ecr_repository", "image_tag_mutability"): ("ecr", "ImageTagMutability"),
    ("aws_eks_cluster", "access_config.authentication_mode"): ("eks", "AuthenticationMode"),
    ("aws_eks_cluster", "enabled_cluster_log_types"): ("eks", "LogType"),
    ("aws_eks_cluster", "upgrade_policy.support_type"): ("eks", "SupportType"),
    ("aws_eks_node_group", "ami_type"): ("eks", "AMITypes"),
    ("aws_eks_node_group", "capacity_type"): ("eks", "CapacityTypes"),
    ("aws_eks_node_group", "instance_types"): ("ec2", "InstanceType"),
    ("aws_eks_node_group", "taint.effect"): ("eks", "TaintEffect"),
    ("aws_launch_template", "block_device_mappings.ebs.volume_type"): ("ec2", "VolumeType"),
    ("aws_launch_template", "instance_market_options.market_type"): ("ec2", "MarketType"),
    ("aws_launch_template", "instance_type"): ("ec2", "InstanceType"),
    ("aws_launch_template", "network_interfaces.interface_type"): (
        "ec2",
        "LaunchTemplateInstanceNetworkInterfaceSpecificationRequest.InterfaceType",
    ),
    ("aws_launch_template", "tag_specifications.resource_type"): ("ec2", "ResourceType"),
    ("aws_placement_group", "strategy"): ("ec2", "PlacementStrategy"),
    ("aws_s3_bucket_versioning", "versioning_configuration.status"): (
        "s3",
        "BucketVersioningStatus",
    ),
    ("aws_vpc_endpoint", "vpc_endpoint_type"): ("ec2", "VpcEndpointType"),
}


@functools.cache
def _session() -> botocore.session.Session:
    return botocore.session.get_session()


@functools.cache
def _shape(service: str, name: str) -> tuple[Shape, str]:
    """The shape of this name and its documentation, that of the member if one is named."""
    structure, _, member = name.partition(".")
    shape = _session().get_service_model(service).shape_for(structure)
    if not member:
        return shape, shape.documentation
    assert isinstance(shape, StructureShape), f"{service} {structure} has no members"
    members: Any = shape.members
    return members[member], members[member].documentation


def accepted(service: str, name: str, value: object) -> bool:
    """Whether the model lists `value`, as an enum or, without one, in the documentation."""
    shape, documentation = _shape(service, name)
    if enum := getattr(shape, "enum", None):
        return value in enum
    words = re.sub(r"<[^>]+>", " ", documentation)
    return re.search(rf"(?<![\w.-]){re.escape(str(value))}(?![\w-])", words) is not None


def _at(values: Any, path: str) -> Iterator[Any]:
    """Every value at `path`, through lists of blocks; what is not given is left out."""
    if isinstance(values, list):
        for each in values:
            yield from _at(each, path)
    elif not path:
        if values is not None and values != "":
            yield values
    elif isinstance(values, dict):
        name, _, rest = path.partition(".")
        yield from _at(values.get(name), rest)


def refused(found: Iterable[Resource], table: Table = VALUES) -> list[str]:
    """One line for every value of these resources that AWS would not take, by `table`."""
    return [
        f"{resource.address} {path} = {value!r} is no {service} {shape}"
        for resource in found
        for (kind, path), (service, shape) in table.items()
        if kind == resource.type
        for value in _at(resource.values, path)
        if not accepted(service, shape, value)
    ]
