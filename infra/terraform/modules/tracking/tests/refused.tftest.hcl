# The cases are in refused.cases; tests/infra/terraform.py makes a run of each.
mock_provider "aws" {}

override_module {
  target  = module.bootstrap
  outputs = { user_data = "#!/bin/sh" }
}

