# Machines of eight H100 in one placement group, joined by EFA, in a reservation or a Capacity Block.
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
  overlay            = "gpu-efa"

  node_groups = {
    gpu-efa = {
      instance_types          = ["p5.48xlarge"]
      maximum                 = var.machines
      gpu                     = true
      efa_cards               = 32
      placement_group         = true
      availability_zone       = var.gpu_zone
      capacity_reservation_id = var.capacity_reservation_id
      capacity_block          = var.capacity_block
      volume_gib              = 500
    }
  }

  monthly_budget_usd = var.monthly_budget_usd
  alert_emails       = var.alert_emails
  tags               = local.tags

  deletion_protection = !var.disposable
  force_destroy       = var.disposable
}
