"""Policies in plans: every JSON document with statements, wherever it stands, and what is wrong.

A statement that allows names whole actions that exist. The resource "*" is for actions to which
AWS gives no resource (Service Authorization Reference), for a key's own policy, where it is that
key, and for nothing else. A statement that denies takes away, so a wildcard in it is strict.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import botocore.session

from tests.infra.terraform import Resource

# Actions that AWS lets name no resource, and why a machine of ours needs them.
WITHOUT_RESOURCE = {
    "ssmmessages:CreateControlChannel": "Session Manager",
    "ssmmessages:CreateDataChannel": "Session Manager",
    "ssmmessages:OpenControlChannel": "Session Manager",
    "ssmmessages:OpenDataChannel": "Session Manager",
    "ec2:DescribeInstances": "the runbook and the head look at machines",
    "ec2:DescribeInstanceStatus": "the runbook waits for the head to stop",
    "autoscaling:DescribeAutoScalingGroups": "the head reads the capacity of the worker groups",
    "autoscaling:DescribeAutoScalingInstances": "the head finds the group of a worker",
    "autoscaling:DescribeScalingActivities": "the head says why a machine did not come",
}
# Permissions whose names are not those of an operation of the API.
_ONLY_PERMISSIONS = {
    "iam:PassRole",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
    "s3:ListBucket",
    "s3:ListBucketMultipartUploads",
    "s3:ListMultipartUploadParts",
    "ssm:UpdateInstanceInformation",
    *(
        f"ssmmessages:{verb}{kind}Channel"
        for verb in ("Create", "Open")
        for kind in ("Control", "Data")
    ),
}
# Operations that other permissions cover: named in a policy, these allow nothing.
_NO_PERMISSIONS = {
    "kms:ReEncrypt",
    *(
        f"s3:{name}"
        for name in (
            "CompleteMultipartUpload",
            "CopyObject",
            "CreateMultipartUpload",
            "HeadBucket",
            "HeadObject",
            "ListMultipartUploads",
            "ListObjects",
            "ListObjectsV2",
            "ListParts",
            "UploadPart",
        )
    ),
}
_SERVICES = {"monitoring": "cloudwatch"}  # where a permission's prefix is not botocore's name


@dataclass(frozen=True)
class Document:
    """A policy and the resource argument that it was found in."""

    resource: Resource
    path: str
    statements: tuple[dict[str, Any], ...]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def documents(found: Iterable[Resource]) -> list[Document]:
    """Every policy in these resources: any string that is JSON with a Statement."""

    def inside(values: Any, path: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        if isinstance(values, dict):
            for name, value in values.items():
                yield from inside(value, f"{path}.{name}" if path else name)
        elif isinstance(values, list):
            for value in values:
                yield from inside(value, path)
        elif isinstance(values, str) and values.lstrip().startswith("{"):
            parsed = json.loads(values)
            if "Statement" in parsed:
                yield path, _listed(parsed["Statement"])

    return [
        Document(resource, path, tuple(statements))
        for resource in found
        for path, statements in inside(resource.values, "")
    ]


@functools.cache
def _operations(prefix: str) -> frozenset[str]:
    session = botocore.session.get_session()
    service = _SERVICES.get(prefix, prefix)
    if service not in session.get_available_services():
        return frozenset()
    names: Any = session.get_service_model(service).operation_names
    return frozenset(names)


def exists(action: str) -> bool:
    """Whether AWS knows the permission, by botocore's operations and the lists above."""
    prefix, _, name = action.partition(":")
    if action in _ONLY_PERMISSIONS:
        return True
    return name in _operations(prefix) and action not in _NO_PERMISSIONS


def faults(found: Iterable[Resource]) -> list[str]:
    """One line for everything that these resources' policies allow and should not."""
    lines = []
    for document in documents(found):
        where = f"{document.resource.address} {document.path}"
        for statement in document.statements:
            if statement["Effect"] == "Deny":
                continue
            said = f"{where} {statement.get('Sid', '')}".rstrip()
            lines += [f"{said}: {fault}" for fault in _allowed(document.resource, statement)]
    return lines


def _allowed(resource: Resource, statement: dict[str, Any]) -> Iterator[str]:
    if negated := {"NotAction", "NotResource", "NotPrincipal"} & set(statement):
        yield f"allows all but what {min(negated)} names"
    actions = _listed(statement.get("Action"))
    if not actions:
        yield "names no action"
    for action in actions:
        if not re.fullmatch(r"[a-z0-9-]+:[A-Za-z0-9]+", action):
            yield f"{action} is not one action"
        elif not exists(action):
            yield f"{action} is no action of AWS"
    yield from _principals(resource, statement)
    key_policy = resource.type == "aws_kms_key"
    if "*" in _listed(statement.get("Resource")) and not key_policy:
        for action in sorted(set(actions) - set(WITHOUT_RESOURCE)):
            yield f'{action} could name a resource and has "*"'


def _principals(resource: Resource, statement: dict[str, Any]) -> Iterator[str]:
    """Everybody may be meant only by an endpoint, and there only within one account."""
    principal = statement.get("Principal", {})
    named = principal.values() if isinstance(principal, dict) else [principal]
    if "*" not in [each for value in named for each in _listed(value)]:
        return
    equal = statement.get("Condition", {}).get("StringEquals", {})
    bound = {"aws:PrincipalAccount", "aws:ResourceAccount"} <= set(equal)
    if resource.type != "aws_vpc_endpoint" or not bound:
        yield "is for everybody"
