# Every validation, by an input that it refuses.
mock_provider "aws" {}

override_module {
  target  = module.bootstrap
  outputs = { user_data = "#!/bin/sh" }
}

variables {
  name                       = "research"
  region                     = "us-east-1"
  vpc_id                     = "vpc-0123456789abcdef0"
  subnet_ids                 = { us-east-1b = "subnet-b", us-east-1a = "subnet-a" }
  zone_id                    = "Z0123456789"
  zone_name                  = "research.internal"
  endpoint_security_group_id = "sg-0123456789abcdef0"
  s3_prefix_list_id          = "pl-63a5400a"
  bucket                     = "research-bucket"
  bucket_arn                 = "arn:aws:s3:::research-bucket"
  artifact_uri               = "s3://research-bucket/rungwise"
  kms_key_arn                = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  ami_id                     = "ami-0123456789abcdef0"
  package = {
    bucket = "research-bucket"
    key    = "packages/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.tar.gz"
    sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
  }
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

run "one_subnet_is_too_few_for_a_database" {
  command = plan

  variables {
    subnet_ids = { us-east-1a = "subnet-1" }
  }

  expect_failures = [var.subnet_ids]
}

run "a_zone_name_in_capitals_is_refused" {
  command = plan

  variables {
    zone_name = "Research.internal"
  }

  expect_failures = [var.zone_name]
}

run "a_zone_name_that_ends_in_a_dot_is_refused" {
  command = plan

  variables {
    zone_name = "research.internal."
  }

  expect_failures = [var.zone_name]
}

run "a_whole_bucket_is_no_folder" {
  command = plan

  variables {
    artifact_uri = "s3://research-bucket"
  }

  expect_failures = [var.artifact_uri]
}

run "a_pattern_as_a_folder_is_refused" {
  command = plan

  variables {
    artifact_uri = "s3://research-bucket/*"
  }

  expect_failures = [var.artifact_uri]
}

run "a_slash_at_the_end_is_refused" {
  command = plan

  variables {
    artifact_uri = "s3://research-bucket/rungwise/"
  }

  expect_failures = [var.artifact_uri]
}

run "a_folder_of_another_bucket_is_refused" {
  command = plan

  variables {
    artifact_uri = "s3://others/rungwise"
  }

  expect_failures = [var.artifact_uri]
}

run "a_package_without_its_digest_is_refused" {
  command = plan

  variables {
    package = { bucket = "research-bucket", key = "packages/a.tar.gz", sha256 = "latest" }
  }

  expect_failures = [var.package]
}

run "a_pattern_as_a_package_is_refused" {
  command = plan

  variables {
    package = { bucket = "research-bucket", key = "packages/*", sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" }
  }

  expect_failures = [var.package]
}

run "an_image_by_name_is_refused" {
  command = plan

  variables {
    ami_id = "ubuntu-24.04"
  }

  expect_failures = [var.ami_id]
}

run "an_image_id_cut_short_is_refused" {
  command = plan

  variables {
    ami_id = "ami-0123"
  }

  expect_failures = [var.ami_id]
}

run "a_size_is_no_instance_type" {
  command = plan

  variables {
    instance_type = "large"
  }

  expect_failures = [var.instance_type]
}

run "a_micro_host_is_refused" {
  command = plan

  variables {
    instance_type = "t3.micro"
  }

  expect_failures = [var.instance_type]
}

run "a_disk_too_small_is_refused" {
  command = plan

  variables {
    volume_gib = 8
  }

  expect_failures = [var.volume_gib]
}

run "half_a_gib_is_refused" {
  command = plan

  variables {
    volume_gib = 30.5
  }

  expect_failures = [var.volume_gib]
}

run "a_disk_larger_than_gp3_is_refused" {
  command = plan

  variables {
    volume_gib = 16385
  }

  expect_failures = [var.volume_gib]
}

run "a_minor_version_is_refused" {
  command = plan

  variables {
    db_engine_version = "17.2"
  }

  expect_failures = [var.db_engine_version]
}

run "an_old_postgresql_is_refused" {
  command = plan

  variables {
    db_engine_version = "14"
  }

  expect_failures = [var.db_engine_version]
}

run "an_instance_type_is_no_database_class" {
  command = plan

  variables {
    db_instance_class = "t4g.micro"
  }

  expect_failures = [var.db_instance_class]
}

run "a_database_smaller_than_gp3_is_refused" {
  command = plan

  variables {
    db_allocated_gib = 10
  }

  expect_failures = [var.db_allocated_gib]
}

run "a_database_that_could_not_grow_is_refused" {
  command = plan

  variables {
    db_allocated_gib = 13108
  }

  expect_failures = [var.db_allocated_gib]
}

run "no_backups_are_refused" {
  command = plan

  variables {
    backup_days = 0
  }

  expect_failures = [var.backup_days]
}

run "backups_longer_than_rds_has_are_refused" {
  command = plan

  variables {
    backup_days = 36
  }

  expect_failures = [var.backup_days]
}

run "a_retention_that_aws_lacks_is_refused" {
  command = plan

  variables {
    log_days = 10
  }

  expect_failures = [var.log_days]
}
