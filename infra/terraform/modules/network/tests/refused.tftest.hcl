# Every validation, by an input that it refuses.
mock_provider "aws" {}

variables {
  name               = "research"
  region             = "us-east-1"
  availability_zones = ["us-east-1a", "us-east-1b"]
}

run "a_name_in_capitals_is_refused" {
  command = plan

  variables {
    name = "Research"
  }

  expect_failures = [var.name]
}

run "two_hyphens_in_a_row_are_refused" {
  command = plan

  variables {
    name = "a--b"
  }

  expect_failures = [var.name]
}

run "a_hyphen_at_the_end_is_refused" {
  command = plan

  variables {
    name = "research-"
  }

  expect_failures = [var.name]
}

run "a_name_like_the_id_of_a_security_group_is_refused" {
  command = plan

  variables {
    name = "sg-research"
  }

  expect_failures = [var.name]
}

run "a_name_longer_than_21_characters_is_refused" {
  command = plan

  variables {
    name = "research-cluster-of-2026"
  }

  expect_failures = [var.name]
}

run "a_zone_is_no_region" {
  command = plan

  variables {
    region             = "us-east-1a"
    availability_zones = ["us-east-1aa", "us-east-1ab"]
  }

  expect_failures = [var.region]
}

run "a_tag_that_is_set_here_is_refused" {
  command = plan

  variables {
    tags = { Name = "mine" }
  }

  expect_failures = [var.tags]
}

run "a_tag_of_aws_is_refused" {
  command = plan

  variables {
    tags = { "AWS:owner" = "me" }
  }

  expect_failures = [var.tags]
}

run "public_addresses_are_refused" {
  command = plan

  variables {
    cidr = "8.8.0.0/16"
  }

  expect_failures = [var.cidr]
}

run "a_vpc_too_small_for_the_zones_is_refused" {
  command = plan

  variables {
    cidr = "10.42.0.0/24"
  }

  expect_failures = [var.cidr]
}

run "a_vpc_larger_than_aws_has_is_refused" {
  command = plan

  variables {
    cidr = "10.0.0.0/8"
  }

  expect_failures = [var.cidr]
}

run "an_address_inside_the_block_is_refused" {
  command = plan

  variables {
    cidr = "10.42.1.0/16"
  }

  expect_failures = [var.cidr]
}

run "an_impossible_address_is_refused" {
  command = plan

  variables {
    cidr = "10.300.0.0/16"
  }

  expect_failures = [var.cidr]
}

run "one_zone_is_too_few_for_a_database" {
  command = plan

  variables {
    availability_zones = ["us-east-1a"]
  }

  expect_failures = [var.availability_zones]
}

run "seven_zones_are_too_many" {
  command = plan

  variables {
    availability_zones = [for letter in ["a", "b", "c", "d", "e", "f", "g"] : "us-east-1${letter}"]
  }

  expect_failures = [var.availability_zones]
}

run "a_zone_named_twice_is_refused" {
  command = plan

  variables {
    availability_zones = ["us-east-1a", "us-east-1a"]
  }

  expect_failures = [var.availability_zones]
}

run "a_zone_of_another_region_is_refused" {
  command = plan

  variables {
    availability_zones = ["us-east-1a", "eu-west-1b"]
  }

  expect_failures = [var.availability_zones]
}

run "a_local_zone_is_refused" {
  command = plan

  variables {
    availability_zones = ["us-east-1a", "us-east-1-bos-1a"]
  }

  expect_failures = [var.availability_zones]
}

run "an_endpoint_that_no_machine_uses_is_refused" {
  command = plan

  variables {
    interface_endpoints = ["autoscaling", "secretsmanager", "ssm", "ssmmessages", "sqs"]
  }

  expect_failures = [var.interface_endpoints]
}

run "a_cluster_without_session_manager_is_refused" {
  command = plan

  variables {
    interface_endpoints = ["autoscaling", "secretsmanager"]
  }

  expect_failures = [var.interface_endpoints]
}

run "a_retention_that_aws_lacks_is_refused" {
  command = plan

  variables {
    flow_log_days = 31
  }

  expect_failures = [var.flow_log_days]
}
