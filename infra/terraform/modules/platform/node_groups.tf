# Managed node groups: `system` for the operator, the head and MLflow, and those of var.node_groups for
# workers. The cluster autoscaler sets their sizes from the pods that wait.
locals {
  system = {
    instance_types          = [var.system_instance_type]
    minimum                 = 2
    maximum                 = 3
    spot                    = false
    gpu                     = false
    efa_cards               = 0
    placement_group         = false
    capacity_reservation_id = null
    capacity_block          = false
    availability_zone       = null
    volume_gib              = 50
  }
  node_groups = merge({ system = local.system }, var.node_groups)

  capacity_types = {
    for name, group in local.node_groups : name =>
    group.capacity_block ? "CAPACITY_BLOCK" : group.spot ? "SPOT" : "ON_DEMAND"
  }

  # Pods that do not ask for such nodes stay away from them.
  taints = {
    for name, group in local.node_groups : name => merge(
      group.gpu ? { "nvidia.com/gpu" = "present" } : {},
      group.spot ? { "rungwise/spot" = "true" } : {},
    )
  }

  # Card 0 carries IP on device 0 and EFA on device 1; every further card carries EFA alone, which
  # takes no address of the subnet
  # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html).
  efa_interfaces = {
    for name, group in local.node_groups : name => group.efa_cards == 0 ? [] : concat(
      [
        { card = 0, device = 0, type = "interface" },
        { card = 0, device = 1, type = "efa-only" },
      ],
      [for card in range(1, group.efa_cards) : { card = card, device = 0, type = "efa-only" }],
    )
  }
}

# EFA wants a group that lets everything in from itself and out to itself.
resource "aws_security_group" "efa" {
  #checkov:skip=CKV2_AWS_5:attached to nodes by the launch template
  name        = "${var.name}-efa"
  description = "EFA between the nodes of ${var.name}"
  vpc_id      = aws_vpc.this.id
}

resource "aws_vpc_security_group_ingress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  description                  = "EFA from nodes of the same group"
  referenced_security_group_id = aws_security_group.efa.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  description                  = "EFA to nodes of the same group"
  referenced_security_group_id = aws_security_group.efa.id
  ip_protocol                  = "-1"
}

resource "aws_placement_group" "this" {
  for_each = { for name, group in local.node_groups : name => group if group.placement_group }

  name     = "${var.name}-${each.key}"
  strategy = "cluster"
}

resource "aws_launch_template" "node" {
  for_each = local.node_groups

  name                   = "${var.name}-${each.key}"
  description            = "Nodes ${each.key} of ${var.name}"
  update_default_version = true
  # EKS takes the type of a Capacity Block from the template, every other from the node group.
  instance_type = each.value.capacity_block ? each.value.instance_types[0] : null
  # With interfaces of its own the template names groups there.
  vpc_security_group_ids = each.value.efa_cards == 0 ? [local.node_security_group] : null

  tags = { Name = "${var.name}-${each.key}" }

  # One hop: pods cannot take the node's role, they have their own.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  # AWS's own key for EBS: with ours, its policy would have to let the service-linked role of EC2
  # Auto Scaling make grants.
  block_device_mappings {
    device_name = "/dev/xvda" # the root of Amazon Linux

    ebs {
      volume_type           = "gp3"
      volume_size           = each.value.volume_gib
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "network_interfaces" {
    for_each = local.efa_interfaces[each.key]

    content {
      network_card_index    = network_interfaces.value.card
      device_index          = network_interfaces.value.device
      interface_type        = network_interfaces.value.type
      delete_on_termination = "true"
      security_groups       = [local.node_security_group, aws_security_group.efa.id]
    }
  }

  dynamic "placement" {
    for_each = each.value.placement_group ? [aws_placement_group.this[each.key].name] : []

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

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]

    content {
      resource_type = tag_specifications.value
      tags          = merge(var.tags, { Name = "${var.name}-${each.key}" })
    }
  }
}

resource "aws_eks_node_group" "this" {
  for_each = local.node_groups

  cluster_name    = aws_eks_cluster.this.name
  node_group_name = each.key
  node_role_arn   = aws_iam_role.service["node"].arn
  version         = var.kubernetes_version
  ami_type        = each.value.gpu ? "AL2023_x86_64_NVIDIA" : "AL2023_x86_64_STANDARD"
  capacity_type   = local.capacity_types[each.key]
  instance_types  = each.value.capacity_block ? null : each.value.instance_types
  subnet_ids = [
    for zone, subnet in aws_subnet.private : subnet.id
    if each.value.availability_zone == null ? true : zone == each.value.availability_zone
  ]

  labels = { "rungwise/group" = each.key }

  launch_template {
    id      = aws_launch_template.node[each.key].id
    version = aws_launch_template.node[each.key].latest_version
  }

  scaling_config {
    min_size     = each.value.minimum
    max_size     = each.value.maximum
    desired_size = each.value.minimum # at the start; the autoscaler's afterwards
  }

  dynamic "taint" {
    for_each = local.taints[each.key]

    content {
      key    = taint.key
      value  = taint.value
      effect = "NO_SCHEDULE"
    }
  }

  lifecycle {
    ignore_changes = [scaling_config[0].desired_size]
  }

  depends_on = [
    aws_eks_addon.node,
    aws_iam_role_policy_attachment.service,
    aws_vpc_endpoint.interface,
    aws_route.nat,
  ]
}
