# The smallest cluster that shows everything: a head, spot machines of four cores that come when a job
# asks and go ten minutes after, MLflow. Destroy deletes its artifacts with it.
locals {
  tags = { Project = "rungwise", Cluster = var.name }

  # Linux on demand in us-east-1 late in 2025, of a group its first type; spot machines cost less.
  listed = { head = 0.1008, cpu = 0.1785 }
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
  flow_log_days      = 7
  # Each endpoint is paid by the hour; these four a cluster cannot do without.
  interface_endpoints = ["autoscaling", "secretsmanager", "ssm", "ssmmessages"]
  tags                = local.tags
}

module "storage" {
  source = "../../modules/storage"

  name           = var.name
  region         = var.region
  vpc_id         = module.network.vpc_id
  s3_endpoint_id = module.network.s3_endpoint_id
  force_destroy  = true
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
  deletion_protection = false
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

  head = {
    instance_type  = "m7i.large"
    ami_id         = var.ami_id
    volume_gib     = 50
    price_per_hour = lookup(local.prices, "head", null)
  }

  worker_groups = {
    cpu = {
      instance_types = ["c7i.xlarge", "c6i.xlarge", "m7i.xlarge"]
      ami_id         = var.ami_id
      maximum        = 2
      cpus           = 4
      spot           = true
      volume_gib     = 50
      price_per_hour = lookup(local.prices, "cpu", null)
    }
  }

  tags = local.tags
}

# Made to make an image of, with make_image=true; the output of that name says how.
module "image" {
  source = "../../modules/image"
  count  = var.make_image ? 1 : 0

  name    = var.name
  region  = var.region
  network = module.network
  storage = module.storage
  ami_id  = var.ami_id
  tags    = local.tags
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
