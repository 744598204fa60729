# The cases are in refused.cases; tests/infra/terraform.py makes a run of each.

variables {
  machine = jsondecode(file("tests/golden/head.json"))
  package = {
    bucket = "demo-bucket"
    key    = "packages/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.tar.gz"
    sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
}

run "more_than_ec2_takes" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), {
      environment = { LONG = join("", [for _ in range(1000) : "0123456789"]) }
    })
  }
  expect_failures = [output.user_data]
}
