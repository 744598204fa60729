"""The modules that a cluster stands on and that of images, applied with the stand-in provider.

Each way of asking for them is applied once in a session, because it takes seconds.
"""

import functools
import tempfile
from pathlib import Path

from tests.infra import terraform
from tests.infra.terraform import Resource

_ROOT = """
terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.25, < 7.0"
    }
  }
}

provider "aws" {
  region = local.region
}

locals {
  name   = "research"
  region = "us-east-1"
}

module "network" {
  source             = "../modules/network"
  name               = local.name
  region             = local.region
  availability_zones = ["us-east-1a", "us-east-1b"]
  nat                = %(everything)s
}

module "storage" {
  source         = "../modules/storage"
  name           = local.name
  region         = local.region
  vpc_id         = module.network.vpc_id
  s3_endpoint_id = module.network.s3_endpoint_id
  package_path   = "${path.module}/../modules/storage/tests/package.tar.gz"
  package_sha256 = filesha256("${path.module}/../modules/storage/tests/package.tar.gz")
}

module "tracking" {
  source  = "../modules/tracking"
  name    = local.name
  region  = local.region
  network = module.network
  storage = module.storage
  ami_id  = "ami-0123456789abcdef0"
}

module "image" {
  source  = "../modules/image"
  count   = %(everything)s ? 1 : 0
  name    = local.name
  region  = local.region
  network = module.network
  storage = module.storage
  ami_id  = "ami-0123456789abcdef0"
}

module "guardrails" {
  source             = "../modules/guardrails"
  name               = local.name
  region             = local.region
  monthly_budget_usd = 500
  alert_emails       = ["ops@example.org"]
  head_instance_id   = "i-0123456789abcdef0"
  autoscaling_groups = { workers = { name = "research-workers", minimum = 0, maximum = 4 } }
  budget_stops_head  = %(everything)s
  off_hours = %(everything)s ? {
    stop     = "0 20 * * 1-5"
    start    = "0 7 * * 1-5"
    timezone = "Europe/Berlin"
  } : null
  idle = { stop_head = %(everything)s }
}
"""

# What a machine is told is tested with the module that renders it, with ARNs that are ARNs. The
# stand-in makes up names that no such test lets pass.
_BOOTSTRAP = """
variable "machine" {
  type = any
}

variable "package" {
  type = any
}

output "user_data" {
  value = jsonencode({ machine = var.machine, package = var.package })
}
"""


def written(place: Path, everything: bool) -> Path:
    """A folder that uses the modules, with defaults or with `everything` that can be asked for."""
    modules = terraform.copy(place) / "modules"
    bootstrap = modules / "bootstrap"
    for old in bootstrap.glob("*.tf"):
        old.unlink()
    bootstrap.mkdir(exist_ok=True)
    (bootstrap / "main.tf").write_text(_BOOTSTRAP)
    root = modules.parent / "root"
    root.mkdir()
    (root / "main.tf").write_text(_ROOT % {"everything": str(everything).lower()})
    return root


@functools.cache
def applied(everything: bool) -> tuple[Resource, ...]:
    """Every resource of the modules after an apply, which the stand-in answers."""
    with tempfile.TemporaryDirectory() as place:
        root = written(Path(place), everything)
        terraform.run(root, "init")
        terraform.run(root, "apply", "-auto-approve")
        return tuple(terraform.resources(terraform.show(root)))
