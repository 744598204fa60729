# The cases are in refused.cases; tests/infra/terraform.py makes a run of each.
mock_provider "aws" {}

variables {
  name               = "research"
  region             = "us-east-1"
  availability_zones = ["us-east-1a", "us-east-1b"]
}
