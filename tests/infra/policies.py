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

# Actions that AWS lets name no resource; the cluster autoscaler looks at groups by them.
WITHOUT_RESOURCE = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:DescribeLaunchConfigurations",
    "autoscaling:DescribeScalingActivities",
    "autoscaling:DescribeTags",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:GetInstanceTypesFromInstanceRequirements",
}
# Permissions whose names are not those of an operation of the API.
_ONLY_PERMISSIONS = {
    "iam:PassRole",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
    "s3:ListBucket",
    "s3:ListBucketMultipartUploads",
    "s3:ListMultipartUploadParts",
    "sts:TagSession",
}
# Operations that other permissions cover: named in a policy, these allow nothing.
_NO_PERMISSIONS = {
    *("kms:ReEncrypt", "s3:CompleteMultipartUpload", "s3:CopyObject", "s3:CreateMultipartUpload"),
    *("s3:HeadBucket", "s3:HeadObject", "s3:ListMultipartUploads", "s3:ListObjects"),
    *("s3:ListObjectsV2", "s3:ListParts", "s3:UploadPart"),
}


@dataclass(frozen=True)
class Document:
    """A policy and the resource argument that it was found in."""

    resource: Resource
    path: str
    statements: tuple[dict[str, Any], ...]


def listed(value: Any) -> list[Any]:
    """The value as a list: policies write one value without brackets."""
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
                yield path, listed(parsed["Statement"])

    return [
        Document(resource, path, tuple(statements))
        for resource in found
        for path, statements in inside(resource.values, "")
    ]


@functools.cache
def _operations(prefix: str) -> frozenset[str]:
    session = botocore.session.get_session()
    if prefix not in session.get_available_services():
        return frozenset()
    names: Any = session.get_service_model(prefix).operation_names
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
    actions = listed(statement.get("Action"))
    if not actions:
        yield "names no action"
    for action in actions:
        if not re.fullmatch(r"[a-z0-9-]+:[A-Za-z0-9]+", action):
            yield f"{action} is not one action"
        elif not exists(action):
            yield f"{action} is no action of AWS"
    yield from _principals(statement)
    key_policy = resource.type == "aws_kms_key"
    if "*" in listed(statement.get("Resource")) and not key_policy:
        for action in sorted(set(actions) - set(WITHOUT_RESOURCE)):
            yield f'{action} could name a resource and has "*"'


def _principals(statement: dict[str, Any]) -> Iterator[str]:
    principal = statement.get("Principal", {})
    named = principal.values() if isinstance(principal, dict) else [principal]
    if "*" in [each for value in named for each in listed(value)]:
        yield "is for everybody"
