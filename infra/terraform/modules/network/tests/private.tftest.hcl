# What the network is by default: nobody enters, machines leave for AWS services alone.
mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:us-east-1:123456789012:log-group:/rungwise/research/flow" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/research-flow-logs" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555" }
  }
}

variables {
  name               = "research"
  region             = "us-east-1"
  availability_zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
  tags               = { cluster = "research" }
}

run "nothing_leads_to_the_internet" {
  assert {
    condition = (
      length(aws_internet_gateway.this) == 0 && length(aws_nat_gateway.this) == 0
      && length(aws_subnet.public) == 0 && length(aws_eip.nat) == 0
      && length(aws_route.nat) == 0 && length(aws_route.internet) == 0
    )
    error_message = "A network without nat has no gateway, no public subnet and no route out."
  }

  assert {
    condition     = length(aws_route_table.private.route) == 0 && output.nat == false
    error_message = "The private route table has no route of its own, and the output says so."
  }
}

run "each_zone_has_one_private_subnet" {
  assert {
    condition = { for zone, subnet in aws_subnet.private : zone => subnet.cidr_block } == {
      us-east-1a = "10.42.0.0/20", us-east-1b = "10.42.16.0/20", us-east-1c = "10.42.32.0/20"
    }
    error_message = "Each zone takes the sixteenth of its place."
  }

  assert {
    condition     = alltrue([for subnet in aws_subnet.private : !subnet.map_public_ip_on_launch])
    error_message = "No subnet hands out public addresses."
  }

  assert {
    condition     = keys(output.private_subnet_ids) == ["us-east-1a", "us-east-1b", "us-east-1c"]
    error_message = "The output names every zone."
  }

  assert {
    condition     = keys(aws_route_table_association.private) == keys(aws_subnet.private)
    error_message = "Every private subnet uses the private route table."
  }
}

run "a_subnet_lies_where_its_zone_stands_in_the_list" {
  variables {
    availability_zones = ["us-east-1b", "us-east-1a"]
  }

  assert {
    condition     = aws_subnet.private["us-east-1b"].cidr_block == "10.42.0.0/20"
    error_message = "A subnet's place is that of its zone in the list, whatever its name."
  }
}

run "names_inside_resolve" {
  assert {
    condition     = aws_vpc.this.enable_dns_support && aws_vpc.this.enable_dns_hostnames
    error_message = "Interface endpoints with private names need both."
  }

  assert {
    condition     = output.zone_name == "research.internal" && one(aws_route53_zone.this.vpc).vpc_id == aws_vpc.this.id
    error_message = "The zone is private to the VPC."
  }
}

run "groups_open_nothing" {
  assert {
    condition     = length(aws_default_security_group.this.ingress) == 0 && length(aws_default_security_group.this.egress) == 0
    error_message = "The default group is closed both ways."
  }

  assert {
    condition     = length(aws_security_group.endpoints.ingress) == 0 && length(aws_security_group.endpoints.egress) == 0
    error_message = "Modules let their own groups in."
  }
}

run "s3_is_reached_by_a_route_and_only_in_this_account" {
  assert {
    condition     = aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway" && aws_vpc_endpoint.s3.service_name == "com.amazonaws.us-east-1.s3"
    error_message = "S3 has a gateway endpoint."
  }

  assert {
    condition     = aws_vpc_endpoint.s3.route_table_ids == toset([aws_route_table.private.id])
    error_message = "Every private subnet has the route to S3."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_vpc_endpoint.s3.policy).Statement :
      statement.Condition.StringEquals["aws:ResourceAccount"] == "123456789012"
      && statement.Condition.StringEquals["aws:PrincipalAccount"] == "123456789012"
      && alltrue([for action in statement.Action : can(regex("^s3:[A-Za-z]+$", action))])
    ])
    error_message = "The endpoint leads to buckets of this account, for this account, by named actions."
  }
}

run "services_are_reached_in_one_zone" {
  assert {
    condition     = keys(aws_vpc_endpoint.interface) == ["autoscaling", "secretsmanager", "ssm", "ssmmessages"]
    error_message = "Every service that a machine of ours calls has an endpoint, and no other is paid for."
  }

  assert {
    condition = alltrue([
      for service, endpoint in aws_vpc_endpoint.interface :
      endpoint.service_name == "com.amazonaws.us-east-1.${service}"
      && endpoint.private_dns_enabled && endpoint.vpc_endpoint_type == "Interface"
      && endpoint.subnet_ids == toset([aws_subnet.private["us-east-1a"].id])
      && endpoint.security_group_ids == toset([aws_security_group.endpoints.id])
    ])
    error_message = "Endpoints answer to the services' own names, in the first zone, behind their group."
  }
}

run "more_services_are_reached_in_every_zone_if_asked" {
  variables {
    endpoints_in_every_zone = true
    interface_endpoints = [
      "autoscaling", "ec2", "ec2messages", "kms", "logs", "monitoring", "secretsmanager", "ssm",
      "ssmmessages",
    ]
  }

  assert {
    condition = length(aws_vpc_endpoint.interface) == 9 && alltrue([
      for endpoint in aws_vpc_endpoint.interface : endpoint.subnet_ids == toset(values(output.private_subnet_ids))
    ])
    error_message = "Nine endpoints, an address of each in every zone."
  }
}

run "traffic_is_recorded" {
  assert {
    condition = (
      aws_flow_log.this.vpc_id == aws_vpc.this.id && aws_flow_log.this.traffic_type == "ALL"
      && aws_flow_log.this.log_destination == aws_cloudwatch_log_group.flow.arn
    )
    error_message = "All traffic of the VPC goes to the log group."
  }

  assert {
    condition     = aws_cloudwatch_log_group.flow.kms_key_id == aws_kms_key.flow_logs.arn && aws_kms_key.flow_logs.enable_key_rotation
    error_message = "The records are encrypted by a key that rotates."
  }

  assert {
    condition     = aws_cloudwatch_log_group.flow.retention_in_days == 30
    error_message = "Records end after flow_log_days."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_iam_role_policy.flow_logs.policy).Statement :
      alltrue([for resource in flatten([statement.Resource]) : resource != "*"])
    ])
    error_message = "The role writes to its own group."
  }
}

run "everything_bears_the_tags_and_a_name" {
  assert {
    condition = alltrue([
      for tags in concat(
        [for subnet in aws_subnet.private : subnet.tags],
        [for endpoint in aws_vpc_endpoint.interface : endpoint.tags],
        [
          aws_vpc.this.tags, aws_vpc_endpoint.s3.tags, aws_route_table.private.tags,
          aws_security_group.endpoints.tags, aws_default_security_group.this.tags,
          aws_route53_zone.this.tags, aws_flow_log.this.tags, aws_kms_key.flow_logs.tags,
          aws_cloudwatch_log_group.flow.tags, aws_iam_role.flow_logs.tags,
        ],
      ) : tags.cluster == "research" && tags.Name != ""
    ])
    error_message = "Tags reach every resource, with a Name."
  }
}

run "nat_adds_one_way_out_and_none_in" {
  variables {
    nat = true
  }

  assert {
    condition     = length(aws_nat_gateway.this) == 1 && length(aws_internet_gateway.this) == 1 && length(aws_subnet.public) == 1
    error_message = "One gateway of each kind, in one public subnet."
  }

  assert {
    condition     = aws_nat_gateway.this[0].subnet_id == aws_subnet.public[0].id && !aws_subnet.public[0].map_public_ip_on_launch
    error_message = "The public subnet holds the NAT gateway and hands out no address."
  }

  assert {
    condition = (
      aws_route.nat[0].route_table_id == aws_route_table.private.id
      && aws_route.nat[0].nat_gateway_id == aws_nat_gateway.this[0].id
      && aws_route.internet[0].route_table_id == aws_route_table.public[0].id
    )
    error_message = "Private subnets leave through the NAT gateway; only the public one touches the internet gateway."
  }

  assert {
    condition     = !contains([for subnet in aws_subnet.private : subnet.cidr_block], aws_subnet.public[0].cidr_block) && aws_subnet.public[0].cidr_block == "10.42.255.0/24"
    error_message = "The public subnet lies in the last sixteenth, which no zone takes."
  }

  assert {
    condition     = output.nat
    error_message = "The output says that there is a way out."
  }
}

run "china_has_names_of_its_own" {
  variables {
    region             = "cn-north-1"
    availability_zones = ["cn-north-1a", "cn-north-1b"]
  }

  override_data {
    target = data.aws_partition.current
    values = { partition = "aws-cn" }
  }

  assert {
    condition = { for service, endpoint in aws_vpc_endpoint.interface : service => endpoint.service_name } == {
      autoscaling    = "cn.com.amazonaws.cn-north-1.autoscaling"
      secretsmanager = "com.amazonaws.cn-north-1.secretsmanager"
      ssm            = "com.amazonaws.cn-north-1.ssm"
      ssmmessages    = "com.amazonaws.cn-north-1.ssmmessages"
    }
    error_message = "Endpoints have the names that AWS lists there."
  }

  assert {
    condition = (
      jsondecode(aws_vpc_endpoint.s3.policy).Statement[0].Resource == "arn:aws-cn:s3:::*"
      && jsondecode(aws_kms_key.flow_logs.policy).Statement[0].Principal.AWS == "arn:aws-cn:iam::123456789012:root"
      && jsondecode(aws_kms_key.flow_logs.policy).Statement[1].Principal.Service == "logs.cn-north-1.amazonaws.com.cn"
    )
    error_message = "ARNs are of the partition, and logs have its principal."
  }
}

run "a_region_may_begin_with_four_letters" {
  command = plan

  variables {
    region             = "eusc-de-east-1"
    availability_zones = ["eusc-de-east-1a", "eusc-de-east-1b"]
  }
}
