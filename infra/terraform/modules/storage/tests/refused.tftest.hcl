# The cases are in refused.cases; tests/infra/terraform.py makes a run of each.
mock_provider "aws" {}

variables {
  name           = "research"
  region         = "us-east-1"
  package_path   = "./tests/package.tar.gz"
  package_sha256 = "cf24fdb62a4c2bfc0653e918762965caa74386e0f8cb212d8e74f97f7a38339e"
}

run "a_package_with_another_digest_is_refused" {
  command = plan

  variables {
    package_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
  }

  expect_failures = [aws_s3_object.package]
}
