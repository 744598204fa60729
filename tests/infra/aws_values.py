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
    ("aws_autoscaling_group", "health_check_type"): (
        "autoscaling",
        "CreateAutoScalingGroupType.HealthCheckType",
    ),
    (
        "aws_autoscaling_group",
        "mixed_instances_policy.instances_distribution.on_demand_allocation_strategy",
    ): ("autoscaling", "InstancesDistribution.OnDemandAllocationStrategy"),
    (
        "aws_autoscaling_group",
        "mixed_instances_policy.instances_distribution.spot_allocation_strategy",
    ): ("autoscaling", "InstancesDistribution.SpotAllocationStrategy"),
    ("aws_autoscaling_group", "termination_policies"): (
        "autoscaling",
        "CreateAutoScalingGroupType.TerminationPolicies",
    ),
    ("aws_budgets_budget", "budget_type"): ("budgets", "BudgetType"),
    ("aws_budgets_budget", "notification.comparison_operator"): ("budgets", "ComparisonOperator"),
    ("aws_budgets_budget", "notification.notification_type"): ("budgets", "NotificationType"),
    ("aws_budgets_budget", "notification.threshold_type"): ("budgets", "ThresholdType"),
    ("aws_budgets_budget", "time_unit"): ("budgets", "TimeUnit"),
    ("aws_cloudwatch_log_group", "retention_in_days"): ("logs", "Days"),
    ("aws_cloudwatch_metric_alarm", "comparison_operator"): ("cloudwatch", "ComparisonOperator"),
    ("aws_cloudwatch_metric_alarm", "metric_query.metric.stat"): ("cloudwatch", "Statistic"),
    ("aws_cloudwatch_metric_alarm", "statistic"): ("cloudwatch", "Statistic"),
    ("aws_cloudwatch_metric_alarm", "treat_missing_data"): (
        "cloudwatch",
        "PutMetricAlarmInput.TreatMissingData",
    ),
    ("aws_db_instance", "enabled_cloudwatch_logs_exports"): (
        "rds",
        "CreateDBInstanceMessage.EnableCloudwatchLogsExports",
    ),
    ("aws_db_instance", "engine"): ("rds", "CreateDBInstanceMessage.Engine"),
    ("aws_db_instance", "storage_type"): ("rds", "CreateDBInstanceMessage.StorageType"),
    ("aws_db_parameter_group", "parameter.apply_method"): ("rds", "ApplyMethod"),
    ("aws_eip", "domain"): ("ec2", "DomainType"),
    ("aws_flow_log", "log_destination_type"): ("ec2", "LogDestinationType"),
    ("aws_flow_log", "max_aggregation_interval"): (
        "ec2",
        "CreateFlowLogsRequest.MaxAggregationInterval",
    ),
    ("aws_flow_log", "traffic_type"): ("ec2", "TrafficType"),
    ("aws_instance", "credit_specification.cpu_credits"): (
        "ec2",
        "CreditSpecificationRequest.CpuCredits",
    ),
    ("aws_instance", "instance_type"): ("ec2", "InstanceType"),
    ("aws_instance", "metadata_options.http_endpoint"): ("ec2", "InstanceMetadataEndpointState"),
    ("aws_instance", "metadata_options.http_tokens"): ("ec2", "HttpTokensState"),
    ("aws_instance", "root_block_device.volume_type"): ("ec2", "VolumeType"),
    ("aws_launch_template", "block_device_mappings.ebs.volume_type"): ("ec2", "VolumeType"),
    ("aws_launch_template", "capacity_reservation_specification.capacity_reservation_preference"): (
        "ec2",
        "CapacityReservationPreference",
    ),
    ("aws_launch_template", "instance_market_options.market_type"): ("ec2", "MarketType"),
    ("aws_launch_template", "instance_type"): ("ec2", "InstanceType"),
    ("aws_launch_template", "metadata_options.http_endpoint"): (
        "ec2",
        "LaunchTemplateInstanceMetadataEndpointState",
    ),
    ("aws_launch_template", "metadata_options.http_tokens"): (
        "ec2",
        "LaunchTemplateHttpTokensState",
    ),
    ("aws_launch_template", "network_interfaces.interface_type"): (
        "ec2",
        "LaunchTemplateInstanceNetworkInterfaceSpecificationRequest.InterfaceType",
    ),
    ("aws_launch_template", "tag_specifications.resource_type"): ("ec2", "ResourceType"),
    ("aws_nat_gateway", "connectivity_type"): ("ec2", "ConnectivityType"),
    ("aws_placement_group", "strategy"): ("ec2", "PlacementStrategy"),
    ("aws_route53_record", "type"): ("route53", "RRType"),
    ("aws_s3_bucket_lifecycle_configuration", "rule.status"): ("s3", "ExpirationStatus"),
    ("aws_s3_bucket_ownership_controls", "rule.object_ownership"): ("s3", "ObjectOwnership"),
    (
        "aws_s3_bucket_server_side_encryption_configuration",
        "rule.apply_server_side_encryption_by_default.sse_algorithm",
    ): ("s3", "ServerSideEncryption"),
    ("aws_s3_bucket_versioning", "versioning_configuration.status"): (
        "s3",
        "BucketVersioningStatus",
    ),
    ("aws_s3_object", "checksum_algorithm"): ("s3", "ChecksumAlgorithm"),
    ("aws_s3_object", "server_side_encryption"): ("s3", "ServerSideEncryption"),
    ("aws_sns_topic_subscription", "protocol"): ("sns", "SubscribeInput.Protocol"),
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


def lists_values(service: str, name: str) -> bool:
    """Whether the model says anything that a value could be compared with."""
    shape, documentation = _shape(service, name)
    return bool(getattr(shape, "enum", None) or documentation)


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
