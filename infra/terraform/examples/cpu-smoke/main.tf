# The smallest cluster that runs a job: two nodes that stay, and spot nodes of four cores on demand.
locals {
  tags = { cluster = var.name }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = local.tags
  }
}

module "platform" {
  source = "../../modules/platform"

  name               = var.name
  region             = var.region
  availability_zones = ["${var.region}a", "${var.region}b"]
  api_cidrs          = var.api_cidrs
  overlay            = "cpu"

  node_groups = {
    cpu  = { instance_types = ["m7i.2xlarge"], maximum = 2 }
    spot = { instance_types = ["m7i.2xlarge", "m6i.2xlarge"], maximum = 4, spot = true }
  }

  monthly_budget_usd = var.monthly_budget_usd
  alert_emails       = var.alert_emails
  tags               = local.tags

  # For trying out: `terraform destroy` leaves nothing behind.
  deletion_protection = false
  force_destroy       = true
}
