# Each rule on a variable has a case here that it refuses. What else the case holds is valid.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "a_name_in_upper_case" {
  command = plan
  variables {
    name = "Research"
  }
  expect_failures = [var.name]
}

run "a_name_of_one_letter" {
  command = plan
  variables {
    name = "r"
  }
  expect_failures = [var.name]
}

run "a_zone_for_a_region" {
  command = plan
  variables {
    region = "us-east-1a"
  }
  expect_failures = [var.region]
}

run "no_subnet" {
  command = plan
  variables {
    subnet_ids = {}
  }
  expect_failures = [var.subnet_ids]
}

run "a_zone_name_with_a_dot_at_the_end" {
  command = plan
  variables {
    zone_name = "research.internal."
  }
  expect_failures = [var.zone_name]
}

run "artifacts_without_a_folder" {
  command = plan
  variables {
    artifact_uri = "s3://research-artifacts"
  }
  expect_failures = [var.artifact_uri]
}

run "artifacts_with_a_pattern" {
  command = plan
  variables {
    artifact_uri = "s3://research-artifacts/run*"
  }
  expect_failures = [var.artifact_uri]
}

run "artifacts_in_another_bucket" {
  command = plan
  variables {
    artifact_uri = "s3://others/rungwise"
  }
  expect_failures = [var.artifact_uri]
}

run "a_short_sha256" {
  command = plan
  variables {
    package = { bucket = "research-artifacts", key = "packages/p.tar.gz", sha256 = "00ff" }
  }
  expect_failures = [var.package]
}

run "a_package_key_with_a_pattern" {
  command = plan
  variables {
    package = { bucket = "research-artifacts", key = "packages/*", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
  }
  expect_failures = [var.package]
}

run "a_tracking_uri_with_a_password" {
  command = plan
  variables {
    tracking_uri = "http://user:planted@tracking.research.internal:5000"
  }
  expect_failures = [var.tracking_uri]
}

run "a_head_type_without_a_size" {
  command = plan
  variables {
    head = { instance_type = "m7i", ami_id = "ami-0123456789abcdef0" }
  }
  expect_failures = [var.head]
}

run "a_head_image_by_name" {
  command = plan
  variables {
    head = { instance_type = "m7i.xlarge", ami_id = "ubuntu-24.04" }
  }
  expect_failures = [var.head]
}

run "a_head_volume_too_small" {
  command = plan
  variables {
    head = { instance_type = "m7i.xlarge", ami_id = "ami-0123456789abcdef0", volume_gib = 8 }
  }
  expect_failures = [var.head]
}

run "a_head_with_half_a_cpu" {
  command = plan
  variables {
    head = { instance_type = "m7i.xlarge", ami_id = "ami-0123456789abcdef0", cpus = 0.5 }
  }
  expect_failures = [var.head]
}

run "a_head_outside_the_network" {
  command = plan
  variables {
    head = { instance_type = "m7i.xlarge", ami_id = "ami-0123456789abcdef0", availability_zone = "us-east-1f" }
  }
  expect_failures = [var.head]
}

run "a_head_with_a_negative_price" {
  command = plan
  variables {
    head = { instance_type = "m7i.xlarge", ami_id = "ami-0123456789abcdef0", price_per_hour = -1 }
  }
  expect_failures = [var.head]
}

run "an_idle_timeout_of_seconds" {
  command = plan
  variables {
    idle_timeout_minutes = 0.5
  }
  expect_failures = [var.idle_timeout_minutes]
}

run "an_idle_timeout_of_days" {
  command = plan
  variables {
    idle_timeout_minutes = 5000
  }
  expect_failures = [var.idle_timeout_minutes]
}

run "workers_that_leave_before_a_new_head_can_answer" {
  command = plan
  variables {
    headless_minutes = 5
  }
  expect_failures = [var.headless_minutes]
}

run "workers_that_wait_for_days" {
  command = plan
  variables {
    headless_minutes = 5000
  }
  expect_failures = [var.headless_minutes]
}

run "a_recovery_window_of_three_days" {
  command = plan
  variables {
    token_recovery_days = 3
  }
  expect_failures = [var.token_recovery_days]
}

run "a_tag_named_name" {
  command = plan
  variables {
    tags = { Name = "mine" }
  }
  expect_failures = [var.tags]
}

run "a_tag_of_aws" {
  command = plan
  variables {
    tags = { "aws:mine" = "x" }
  }
  expect_failures = [var.tags]
}

run "a_data_bucket_with_a_folder" {
  command = plan
  variables {
    data_buckets = { "our-texts/en" = {} }
  }
  expect_failures = [var.data_buckets]
}

run "the_bucket_of_artifacts_as_a_data_bucket" {
  command = plan
  variables {
    data_buckets = { "research-artifacts" = {} }
  }
  expect_failures = [var.data_buckets]
}
