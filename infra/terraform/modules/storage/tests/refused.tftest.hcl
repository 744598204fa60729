# Every validation, by an input that it refuses, and a package that is not the one named.
mock_provider "aws" {}

variables {
  name           = "research"
  region         = "us-east-1"
  package_path   = "./tests/package.tar.gz"
  package_sha256 = "cf24fdb62a4c2bfc0653e918762965caa74386e0f8cb212d8e74f97f7a38339e"
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
    region = "us-east-1a"
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

run "an_endpoint_without_its_vpc_is_refused" {
  command = plan

  variables {
    s3_endpoint_id = "vpce-0123456789abcdef0"
  }

  expect_failures = [var.s3_endpoint_id]
}

run "a_vpc_without_its_endpoint_is_refused" {
  command = plan

  variables {
    vpc_id = "vpc-0123456789abcdef0"
  }

  expect_failures = [var.s3_endpoint_id]
}

run "old_versions_that_go_at_once_are_refused" {
  command = plan

  variables {
    noncurrent_days = 0
  }

  expect_failures = [var.noncurrent_days]
}

run "old_versions_kept_longer_than_ten_years_are_refused" {
  command = plan

  variables {
    noncurrent_days = 3651
  }

  expect_failures = [var.noncurrent_days]
}

run "half_a_day_is_refused" {
  command = plan

  variables {
    noncurrent_days = 1.5
  }

  expect_failures = [var.noncurrent_days]
}

run "a_package_that_is_not_there_is_refused" {
  command = plan

  variables {
    package_path = "./tests/absent.tar.gz"
  }

  expect_failures = [var.package_path]
}

run "a_package_that_is_no_archive_is_refused" {
  command = plan

  variables {
    package_path = "./versions.tf"
  }

  expect_failures = [var.package_path]
}

run "a_digest_in_capitals_is_refused" {
  command = plan

  variables {
    package_sha256 = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"
  }

  expect_failures = [var.package_sha256]
}

run "a_digest_too_short_is_refused" {
  command = plan

  variables {
    package_sha256 = "e3b0c442"
  }

  expect_failures = [var.package_sha256]
}

run "a_package_with_another_digest_is_refused" {
  command = plan

  variables {
    package_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
  }

  expect_failures = [aws_s3_object.package]
}
