# The cases are in refused.cases; tests/infra/terraform.py makes a run of each.
mock_provider "aws" {}


run "a_package_with_another_digest_is_refused" {
  command = plan

  variables {
    package_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
  }

  expect_failures = [aws_s3_object.package]
}
