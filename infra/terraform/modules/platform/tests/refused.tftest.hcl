# The cases are in refused.cases; tests/infra/terraform.py makes a run of each.
mock_provider "aws" {}
