# Pretraining on reserved H100 machines with EFA, close together; Ray Data's work runs on spot machines
# beside them, so that no GPU waits for text.
locals {
  tags = { Project = "rungwise", Cluster = var.name }

  # Linux on demand in us-east-1 late in 2025, of a group its first type; spot machines cost less.
  listed = { head = 0.4032, data = 1.428 }
  prices = merge(
    { for name, price in local.listed : name => price if var.region == "us-east-1" },
    { for name, price in var.prices_per_hour : name => price if price != null },
  )
}

module "network" {
  source = "../../modules/network"

  name               = var.name
  region             = var.region
  availability_zones = var.availability_zones
  tags               = local.tags
}

module "storage" {
  source = "../../modules/storage"

  name           = var.name
  region         = var.region
  vpc_id         = module.network.vpc_id
  s3_endpoint_id = module.network.s3_endpoint_id
  force_destroy  = var.disposable
  package_path   = var.package_path
  package_sha256 = var.package_sha256
  tags           = local.tags
}

module "tracking" {
  source = "../../modules/tracking"

  name                = var.name
  region              = var.region
  network             = module.network
  storage             = module.storage
  ami_id              = var.ami_id
  deletion_protection = !var.disposable
  tags                = local.tags
}

module "ray_cluster" {
  source = "../../modules/ray_cluster"

  name                       = var.name
  region                     = var.region
  network                    = module.network
  storage                    = module.storage
  data_buckets               = var.data_buckets
  tracking_uri               = module.tracking.tracking_uri
  tracking_security_group_id = module.tracking.security_group_id
  tracking_instance_id       = module.tracking.instance_id

  # In the GPUs' zone: what the head says to them does not pay for crossing zones.
  head = {
    instance_type     = "m7i.2xlarge"
    ami_id            = var.ami_id
    availability_zone = var.gpu_zone
    price_per_hour    = lookup(local.prices, "head", null)
  }

  worker_groups = {
    h100 = {
      instance_types          = ["p5.48xlarge"]
      ami_id                  = var.gpu_ami_id
      maximum                 = var.gpu_machines
      cpus                    = 192
      gpus                    = 8
      labels                  = { accelerator = "h100" }
      efa_cards               = 32
      placement_group         = true
      capacity_reservation_id = var.capacity_reservation_id
      capacity_block          = var.capacity_block
      availability_zone       = var.gpu_zone
      volume_gib              = 500
      price_per_hour          = lookup(local.prices, "h100", null)
    }
    data = {
      instance_types = ["c7i.8xlarge", "c6i.8xlarge", "m7i.8xlarge", "m6i.8xlarge"]
      ami_id         = var.ami_id
      maximum        = 16
      cpus           = 32
      spot           = true
      volume_gib     = 200
      price_per_hour = lookup(local.prices, "data", null)
    }
  }

  tags = local.tags
}

# Made to make an image of, with make_image=true; the output of that name says how.
module "image" {
  source = "../../modules/image"
  count  = var.make_image ? 1 : 0

  name       = var.name
  region     = var.region
  network    = module.network
  storage    = module.storage
  ami_id     = var.gpu_ami_id
  volume_gib = 100
  tags       = local.tags
}

module "guardrails" {
  source = "../../modules/guardrails"

  name               = var.name
  region             = var.region
  monthly_budget_usd = var.monthly_budget_usd
  budget_stops_head  = var.budget_stops_head
  alert_emails       = var.alert_emails
  autoscaling_groups = module.ray_cluster.autoscaling_groups
  head_instance_id   = module.ray_cluster.head_instance_id
  tags               = local.tags
}
