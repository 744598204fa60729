locals {
  worker_tags = {
    for name in keys(var.worker_groups) : name => merge(var.tags, {
      Name             = "${var.name}-${name}"
      "rungwise:group" = name
    })
  }

  # Card 0 carries IP on device 0 and EFA on device 1; every further card carries EFA alone, which
  # takes no address of the subnet
  # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html).
  network_interfaces = {
    for name, group in var.worker_groups : name => concat(
      [{ card = 0, device = 0, type = "interface" }],
      group.efa_cards > 0 ? [{ card = 0, device = 1, type = "efa-only" }] : [],
      [for card in range(1, max(group.efa_cards, 1)) : { card = card, device = 0, type = "efa-only" }],
    )
  }

  # Overrides of the instance type and the share of spot machines need a mixed instances policy.
  # Reservations and EFA do not, and take the plain template.
  mixed = {
    for name, group in var.worker_groups : name => group.spot || length(group.instance_types) > 1
  }
}

resource "aws_placement_group" "worker" {
  for_each = { for name, group in var.worker_groups : name => group if group.placement_group }

  name     = "${var.name}-${each.key}"
  strategy = "cluster"
  tags     = local.worker_tags[each.key]
}

resource "aws_launch_template" "worker" {
  for_each = var.worker_groups

  name                                 = "${var.name}-${each.key}"
  description                          = "Ray workers ${each.key} of ${var.name}"
  image_id                             = each.value.ami_id
  instance_type                        = each.value.instance_types[0]
  instance_initiated_shutdown_behavior = "terminate"
  ebs_optimized                        = "true"
  update_default_version               = true
  user_data                            = base64encode(module.worker_bootstrap[each.key].user_data)
  tags                                 = local.worker_tags[each.key]

  iam_instance_profile {
    arn = aws_iam_instance_profile.worker.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  monitoring {
    enabled = true
  }

  block_device_mappings {
    device_name = "/dev/sda1" # the root of Ubuntu's images

    # AWS's own key for EBS: with a key of ours, its policy would have to let the service-linked role
    # of EC2 Auto Scaling make grants.
    ebs {
      volume_type           = "gp3"
      volume_size           = each.value.volume_gib
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "network_interfaces" {
    for_each = local.network_interfaces[each.key]

    content {
      network_card_index = network_interfaces.value.card
      device_index       = network_interfaces.value.device
      interface_type     = network_interfaces.value.type
      # AWS refuses the key with several interfaces, and gives such a machine no public address.
      associate_public_ip_address = length(local.network_interfaces[each.key]) == 1 ? "false" : null
      delete_on_termination       = "true"
      security_groups             = [aws_security_group.cluster.id]
    }
  }

  dynamic "placement" {
    for_each = each.value.placement_group ? [aws_placement_group.worker[each.key].name] : []

    content {
      group_name = placement.value
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.capacity_reservation_id == null ? [] : [each.value.capacity_reservation_id]

    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.capacity_block ? ["capacity-block"] : []

    content {
      market_type = instance_market_options.value
    }
  }

  # Instances get their tags from the group.
  dynamic "tag_specifications" {
    for_each = ["volume", "network-interface"]

    content {
      resource_type = tag_specifications.value
      tags          = local.worker_tags[each.key]
    }
  }
}

# Ray's autoscaler, through its node provider, owns the number of machines between minimum and
# maximum: it sets the desired capacity and names the machine that goes.
resource "aws_autoscaling_group" "worker" {
  for_each = var.worker_groups

  name             = local.autoscaling_groups[each.key]
  min_size         = each.value.minimum
  max_size         = each.value.maximum
  desired_capacity = each.value.minimum # at the start; later changes are ignored, see below
  vpc_zone_identifier = [
    for zone, subnet in var.network.private_subnet_ids : subnet
    if each.value.availability_zone == null ? true : zone == each.value.availability_zone
  ]

  health_check_type         = "EC2"
  health_check_grace_period = 300
  # Machines of a scarce kind come when they come; apply does not wait for them.
  wait_for_capacity_timeout = "0"
  # A recommendation to rebalance is often followed by nothing, and answering it would end a machine
  # at work. The notice of two minutes is certain, and on it the bootstrap drains the node.
  capacity_rebalance = false
  # Only Ray ends machines at work. What is idle may be ended from outside: off-hours must be able to.
  protect_from_scale_in = false
  # Moving machines to even out the zones would end ones at work.
  suspended_processes = ["AZRebalance"]
  # Where AWS does choose (off hours, a lower maximum), the newest machine has done the least.
  termination_policies = ["NewestInstance"]
  # No refresh on a new template: machines at work stay on the old one, new machines take the new one.

  enabled_metrics = ["GroupDesiredCapacity", "GroupInServiceInstances", "GroupMaxSize"]

  dynamic "launch_template" {
    for_each = local.mixed[each.key] ? [] : [aws_launch_template.worker[each.key]]

    content {
      id      = launch_template.value.id
      version = launch_template.value.latest_version
    }
  }

  dynamic "mixed_instances_policy" {
    for_each = local.mixed[each.key] ? [aws_launch_template.worker[each.key]] : []

    content {
      instances_distribution {
        on_demand_base_capacity                  = 0
        on_demand_percentage_above_base_capacity = each.value.spot ? 0 : 100
        on_demand_allocation_strategy            = "prioritized"
        spot_allocation_strategy                 = "capacity-optimized"
      }

      launch_template {
        launch_template_specification {
          launch_template_id = mixed_instances_policy.value.id
          version            = mixed_instances_policy.value.latest_version
        }

        dynamic "override" {
          for_each = each.value.instance_types

          content {
            instance_type = override.value
          }
        }
      }
    }
  }

  dynamic "tag" {
    for_each = local.worker_tags[each.key]

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  timeouts {
    delete = "30m" # large machines take long to end
  }

  lifecycle {
    ignore_changes = [desired_capacity]
  }

  depends_on = [
    aws_iam_role_policy.worker,
    aws_vpc_security_group_egress_rule.itself,
    aws_vpc_security_group_ingress_rule.itself,
  ]
}
