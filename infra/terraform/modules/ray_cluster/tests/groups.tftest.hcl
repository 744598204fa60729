# EFA, placement groups, reservations and spot machines, as launch templates and groups.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  head = { instance_type = "m7i.xlarge", ami_id = "ami-0123456789abcdef0", availability_zone = "us-east-1b" }
  worker_groups = {
    h100 = {
      instance_types          = ["p5.48xlarge"]
      ami_id                  = "ami-0fedcba9876543210"
      maximum                 = 4
      cpus                    = 192
      gpus                    = 8
      efa_cards               = 32
      placement_group         = true
      capacity_reservation_id = "cr-0123456789abcdef0"
      availability_zone       = "us-east-1b"
      labels                  = { accelerator = "h100" }
      resources               = { fast_disk = 8 }
    }
    a100 = {
      instance_types    = ["p4d.24xlarge"]
      ami_id            = "ami-0fedcba9876543210"
      maximum           = 2
      cpus              = 96
      gpus              = 8
      efa_cards         = 4
      availability_zone = "us-east-1a"
    }
    one-card = {
      instance_types    = ["g6.8xlarge"]
      ami_id            = "ami-0fedcba9876543210"
      maximum           = 2
      cpus              = 32
      gpus              = 1
      efa_cards         = 1
      availability_zone = "us-east-1a"
    }
    block = {
      instance_types          = ["p5.48xlarge"]
      ami_id                  = "ami-0fedcba9876543210"
      maximum                 = 2
      cpus                    = 192
      gpus                    = 8
      efa_cards               = 32
      capacity_reservation_id = "cr-0fedcba9876543210"
      capacity_block          = true
      availability_zone       = "us-east-1a"
    }
    cheap = {
      instance_types = ["c7i.4xlarge", "c6i.4xlarge", "m7i.4xlarge"]
      ami_id         = "ami-0123456789abcdef0"
      minimum        = 1
      maximum        = 20
      cpus           = 16
      spot           = true
    }
    steady = {
      instance_types = ["c7i.4xlarge", "c6i.4xlarge"]
      ami_id         = "ami-0123456789abcdef0"
      maximum        = 3
      cpus           = 16
    }
  }
}

run "efa_has_ip_on_the_first_card_and_efa_on_every_card" {
  assert {
    condition = [
      for each in aws_launch_template.worker["h100"].network_interfaces :
      [each.network_card_index, each.device_index, each.interface_type]
      ] == concat(
      [[0, 0, "interface"], [0, 1, "efa-only"]],
      [for card in range(1, 32) : [card, 0, "efa-only"]],
    )
    error_message = "p5.48xlarge: not one interface with IP and 32 with EFA, in the layout AWS asks for."
  }
  assert {
    condition = [
      for each in aws_launch_template.worker["a100"].network_interfaces :
      [each.network_card_index, each.device_index, each.interface_type]
    ] == [[0, 0, "interface"], [0, 1, "efa-only"], [1, 0, "efa-only"], [2, 0, "efa-only"], [3, 0, "efa-only"]]
    error_message = "p4d.24xlarge: not one interface with IP and four with EFA."
  }
  assert {
    condition = [
      for each in aws_launch_template.worker["one-card"].network_interfaces :
      [each.network_card_index, each.device_index, each.interface_type]
    ] == [[0, 0, "interface"], [0, 1, "efa-only"]]
    error_message = "A type with one card: not one interface with IP and one with EFA."
  }
  assert {
    condition = alltrue([
      for each in aws_launch_template.worker["h100"].network_interfaces :
      each.security_groups == toset([aws_security_group.cluster.id]) && each.delete_on_termination == "true"
      && each.associate_public_ip_address == null
    ])
    error_message = "An interface is outside the cluster's security group, stays behind, or asks for a public address."
  }
}

run "efa_groups_lie_in_one_zone" {
  assert {
    condition = (
      aws_autoscaling_group.worker["h100"].vpc_zone_identifier == toset(["subnet-0bbbbbbbbbbbbbbbb"])
      && aws_autoscaling_group.worker["a100"].vpc_zone_identifier == toset(["subnet-0aaaaaaaaaaaaaaaa"])
    )
    error_message = "An EFA group spans zones."
  }
  assert {
    condition     = aws_instance.head.subnet_id == "subnet-0bbbbbbbbbbbbbbbb"
    error_message = "The head is not in the zone it was given."
  }
}

run "the_placement_group_is_a_cluster" {
  assert {
    condition     = keys(aws_placement_group.worker) == ["h100"] && aws_placement_group.worker["h100"].strategy == "cluster"
    error_message = "Not exactly one placement group, of the strategy cluster."
  }
  assert {
    condition     = one(aws_launch_template.worker["h100"].placement).group_name == aws_placement_group.worker["h100"].name
    error_message = "Machines are not launched into the placement group."
  }
  assert {
    condition     = length(aws_launch_template.worker["cheap"].placement) == 0
    error_message = "A group without a placement group has one."
  }
}

run "a_reservation_is_targeted_and_on_demand" {
  assert {
    condition = (
      aws_launch_template.worker["h100"].capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id
      == "cr-0123456789abcdef0"
    )
    error_message = "The launch template does not name the reservation."
  }
  assert {
    condition = (
      length(aws_autoscaling_group.worker["h100"].mixed_instances_policy) == 0
      && aws_autoscaling_group.worker["h100"].launch_template[0].id == aws_launch_template.worker["h100"].id
      && aws_launch_template.worker["h100"].instance_type == "p5.48xlarge"
      && length(aws_launch_template.worker["h100"].instance_market_options) == 0
    )
    error_message = "A reserved group is not plain on-demand of one type."
  }
  assert {
    condition     = one(aws_launch_template.worker["block"].instance_market_options).market_type == "capacity-block"
    error_message = "A Capacity Block is not asked for as one."
  }
}

run "spot_groups_take_spot_machines_only_and_choose_the_deepest_pool" {
  assert {
    condition = (
      one(aws_autoscaling_group.worker["cheap"].mixed_instances_policy[0].instances_distribution).on_demand_percentage_above_base_capacity == 0
      && one(aws_autoscaling_group.worker["cheap"].mixed_instances_policy[0].instances_distribution).on_demand_base_capacity == 0
      && one(aws_autoscaling_group.worker["cheap"].mixed_instances_policy[0].instances_distribution).spot_allocation_strategy == "capacity-optimized"
    )
    error_message = "A spot group would pay for on-demand machines, or does not choose by capacity."
  }
  assert {
    condition = [
      for each in aws_autoscaling_group.worker["cheap"].mixed_instances_policy[0].launch_template[0].override : each.instance_type
    ] == ["c7i.4xlarge", "c6i.4xlarge", "m7i.4xlarge"]
    error_message = "The group does not offer its instance types."
  }
  assert {
    condition     = aws_autoscaling_group.worker["cheap"].capacity_rebalance == false
    error_message = "A rebalance recommendation would end a machine at work."
  }
  assert {
    condition     = aws_autoscaling_group.worker["cheap"].desired_capacity == 1
    error_message = "The group does not start at its minimum."
  }
}

run "several_types_on_demand_keep_their_order" {
  assert {
    condition = (
      one(aws_autoscaling_group.worker["steady"].mixed_instances_policy[0].instances_distribution).on_demand_percentage_above_base_capacity == 100
      && one(aws_autoscaling_group.worker["steady"].mixed_instances_policy[0].instances_distribution).on_demand_allocation_strategy == "prioritized"
    )
    error_message = "Not on-demand in the order given."
  }
}
