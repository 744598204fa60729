# A cluster of one CPU group, with everything else left as it is.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "the_head_is_private" {
  assert {
    condition     = aws_instance.head.associate_public_ip_address == false
    error_message = "The head has a public address."
  }
  assert {
    condition     = aws_instance.head.subnet_id == "subnet-0aaaaaaaaaaaaaaaa"
    error_message = "The head is not in the first private subnet."
  }
  assert {
    condition = (
      aws_instance.head.metadata_options[0].http_tokens == "required"
      && aws_instance.head.metadata_options[0].http_put_response_hop_limit == 1
    )
    error_message = "The head's metadata can be read without IMDSv2 or from behind one more hop."
  }
  assert {
    condition     = aws_instance.head.root_block_device[0].encrypted
    error_message = "The head's volume is not encrypted."
  }
  assert {
    condition     = aws_instance.head.user_data_replace_on_change
    error_message = "A head with old user data would stay."
  }
  assert {
    condition = (
      aws_route53_record.head.name == "head.research.internal"
      && aws_route53_record.head.records == toset([aws_instance.head.private_ip])
    )
    error_message = "head.<zone> does not lead to the head."
  }
}

run "workers_are_private_and_go_when_they_shut_down" {
  assert {
    condition     = one(aws_launch_template.worker["cpu"].network_interfaces).associate_public_ip_address == "false"
    error_message = "Workers have public addresses."
  }
  assert {
    condition     = aws_launch_template.worker["cpu"].key_name == null
    error_message = "Workers have an SSH key."
  }
  assert {
    condition = (
      aws_launch_template.worker["cpu"].metadata_options[0].http_tokens == "required"
      && aws_launch_template.worker["cpu"].metadata_options[0].http_put_response_hop_limit == 1
    )
    error_message = "A worker's metadata can be read without IMDSv2 or from behind one more hop."
  }
  assert {
    condition     = aws_launch_template.worker["cpu"].block_device_mappings[0].ebs[0].encrypted == "true"
    error_message = "A worker's volume is not encrypted."
  }
  assert {
    condition     = aws_launch_template.worker["cpu"].instance_initiated_shutdown_behavior == "terminate"
    error_message = "A worker that shuts down would stay, stopped and paid for."
  }
}

run "the_group_starts_at_its_minimum_and_scales_by_ray_alone" {
  assert {
    condition = (
      aws_autoscaling_group.worker["cpu"].min_size == 0
      && aws_autoscaling_group.worker["cpu"].max_size == 4
      && aws_autoscaling_group.worker["cpu"].desired_capacity == 0
    )
    error_message = "The group does not start at its minimum within its bounds."
  }
  assert {
    condition     = contains(aws_autoscaling_group.worker["cpu"].suspended_processes, "AZRebalance")
    error_message = "Evening out the zones could end a machine at work."
  }
  assert {
    condition     = aws_autoscaling_group.worker["cpu"].vpc_zone_identifier == toset(values(var.network.private_subnet_ids))
    error_message = "The group does not use every zone."
  }
  assert {
    condition = {
      for tag in aws_autoscaling_group.worker["cpu"].tag : tag.key => tag.value if tag.propagate_at_launch
    } == { Project = "rungwise", Name = "research-cpu", "rungwise:group" = "cpu" }
    error_message = "Machines do not get the tags."
  }
  assert {
    condition     = output.autoscaling_groups == { cpu = { name = "research-cpu", minimum = 0, maximum = 4 } }
    error_message = "The output does not name the group with its bounds."
  }
}

run "nothing_is_let_in_by_address" {
  assert {
    condition = alltrue([
      for rule in [
        aws_vpc_security_group_ingress_rule.itself,
        aws_vpc_security_group_ingress_rule.endpoints,
        aws_vpc_security_group_ingress_rule.tracking,
      ] :
      rule.cidr_ipv4 == null && rule.cidr_ipv6 == null && rule.prefix_list_id == null
      && rule.referenced_security_group_id == aws_security_group.cluster.id
    ])
    error_message = "A rule lets in an address range, or others than the cluster's own nodes."
  }
  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.itself.ip_protocol == "-1"
      && aws_vpc_security_group_egress_rule.itself.ip_protocol == "-1"
      && aws_vpc_security_group_egress_rule.itself.referenced_security_group_id == aws_security_group.cluster.id
    )
    error_message = "Nodes do not reach each other with every protocol, which EFA asks for."
  }
  assert {
    condition     = length(aws_vpc_security_group_egress_rule.nat) == 0
    error_message = "Without a NAT gateway there is a rule to the internet."
  }
}

run "with_a_nat_gateway_only_https_leaves" {
  variables {
    network = merge(var.network, { nat = true })
  }
  assert {
    condition = (
      aws_vpc_security_group_egress_rule.nat[0].from_port == 443
      && aws_vpc_security_group_egress_rule.nat[0].to_port == 443
      && aws_vpc_security_group_egress_rule.nat[0].ip_protocol == "tcp"
    )
    error_message = "More than HTTPS may leave."
  }
}

run "the_token_leaves_nothing_behind" {
  assert {
    condition     = aws_secretsmanager_secret.token.recovery_window_in_days == 0
    error_message = "The secret would stay for days after destroy."
  }
  assert {
    condition     = aws_secretsmanager_secret.token.kms_key_id == var.storage.kms_key_arn
    error_message = "The secret is not encrypted with the cluster's key."
  }
}

run "workers_are_told_how_long_to_wait_for_a_head" {
  variables {
    headless_minutes = 45
  }
  assert {
    condition = (
      strcontains(base64decode(aws_launch_template.worker["cpu"].user_data), "\"headless_minutes\":45")
      && !strcontains(aws_instance.head.user_data, "headless_minutes")
    )
    error_message = "Workers alone wait for a head, as long as they are told."
  }
}

run "the_commands_name_the_machines" {
  assert {
    condition     = output.job_address == "http://127.0.0.1:8265"
    error_message = "The job address is not the forwarded port."
  }
  assert {
    condition = alltrue([
      for name in ["ray", "prometheus", "shell"] :
      strcontains(output.connect[name], "--target ${aws_instance.head.id}")
    ]) && strcontains(output.connect.mlflow, "--target i-0ffffffffffffffff")
    error_message = "A command leads to another machine."
  }
  assert {
    condition     = strcontains(output.connect.token, "umask 077") && strcontains(output.connect.token, "> ~/.ray/research.token")
    error_message = "The token is not written to a file of its owner."
  }
}
