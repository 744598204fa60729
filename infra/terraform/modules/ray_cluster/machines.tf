# What each machine is told (platform/rungwise/cluster/description.py), and the user data made of it.
# Secrets are named by their ARN only: user data can be read by whoever may describe an instance.
locals {
  head_host = "head.${var.network.zone_name}"

  autoscaling_groups = {
    for group in keys(var.worker_groups) : group => "${var.name}-${group}"
  }

  # Written out although Ray could count by itself: the autoscaler must know what a machine of a
  # group offers before the first one has started.
  worker_resources = {
    for name, group in var.worker_groups : name => merge(
      { CPU = group.cpus },
      group.gpus > 0 ? { GPU = group.gpus } : {},
      group.resources,
    )
  }

  common = {
    cluster       = var.name
    region        = var.region
    token_secret  = aws_secretsmanager_secret.token.arn
    tracking_uri  = var.tracking_uri
    artifact_uri  = var.storage.artifact_uri
    head_address  = local.head_host
    database      = null
    allowed_hosts = []
    environment   = {}
  }

  head_machine = merge(local.common, {
    role           = "head"
    group          = "head"
    resources      = { CPU = var.head.cpus }
    labels         = {}
    spot           = false
    price_per_hour = var.head.price_per_hour
    scaling = {
      idle_timeout_minutes = var.idle_timeout_minutes
      groups = {
        for name, group in var.worker_groups : name => {
          autoscaling_group = local.autoscaling_groups[name]
          minimum           = group.minimum
          maximum           = group.maximum
          resources         = local.worker_resources[name]
          labels            = group.labels
          price_per_hour    = group.price_per_hour
        }
      }
    }
  })

  worker_machines = {
    for name, group in var.worker_groups : name => merge(local.common, {
      role             = "worker"
      group            = name
      resources        = local.worker_resources[name]
      labels           = group.labels
      spot             = group.spot
      headless_minutes = var.headless_minutes
      price_per_hour   = group.price_per_hour
      scaling          = null
    })
  }
}

module "head_bootstrap" {
  source = "../bootstrap"

  machine = local.head_machine
  package = var.storage.package
}

module "worker_bootstrap" {
  source   = "../bootstrap"
  for_each = local.worker_machines

  machine = each.value
  package = var.storage.package
}
