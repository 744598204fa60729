# The cases are in refused.cases; tests/infra/terraform.py makes a run of each.
mock_provider "aws" {}

variables {
  name               = "research"
  region             = "us-east-1"
  monthly_budget_usd = 500
  alert_emails       = ["ops@example.org"]
  head_instance_id   = "i-0123456789abcdef0"
  autoscaling_groups = { workers = { name = "research-workers", minimum = 0, maximum = 4 } }
}
