"""The examples of infra/terraform, made with the provider that talks to no cloud."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from tests.infra import terraform

OWNER = "owner@example.org"
EXAMPLES = ("cpu-smoke", "gpu-efa")
_MACHINE = "<<'RUNGWISE'\n"
_VARIABLES: dict[str, dict[str, Any]] = {
    "cpu-smoke": {},
    "gpu-efa": {
        "gpu_zone": "us-east-1b",
        "capacity_reservation_id": "cr-0123456789abcdef0",
        "capacity_block": True,
        "gpu_ami_id": "ami-0fedcba9876543210",
        "prices_per_hour": {"h100": 12.5},
        "monthly_budget_usd": 1000,
    },
}


def prepare(example: str, place: Path) -> Path:
    """A copy of the example in `place`, with a package, its variables, and its providers."""
    package = place / "rungwise.tar.gz"
    package.write_bytes(b"a package")
    variables = {
        "ami_id": "ami-0123456789abcdef0",
        "package_path": str(package),
        "package_sha256": hashlib.sha256(package.read_bytes()).hexdigest(),
        "alert_emails": [OWNER],
        **_VARIABLES[example],
    }
    folder = terraform.copy(place) / "examples" / example
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables), encoding="utf-8")
    terraform.run(folder, "init")
    return folder


def user_data(resources: list[terraform.Resource]) -> dict[str, str]:
    """The script of every machine and launch template: address => plain text."""
    found = {}
    for resource in resources:
        if resource.type == "aws_instance":
            found[resource.address] = resource.values["user_data"]
        if resource.type == "aws_launch_template":
            encoded = resource.values["user_data"]
            found[resource.address] = base64.b64decode(encoded, validate=True).decode()
    return found


def machine(script: str) -> dict[str, Any]:
    """What the script writes to /etc/rungwise/machine.json."""
    _, _, rest = script.partition(f"/etc/rungwise/machine.json {_MACHINE}")
    return json.loads(rest.partition("\nRUNGWISE\n")[0])
