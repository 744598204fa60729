# Every validation refuses what it is there for.

variables {
  machine = jsondecode(file("tests/golden/head.json"))
  package = {
    bucket = "demo-bucket"
    key    = "packages/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.tar.gz"
    sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
}

run "an_unknown_role" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { role = "boss" })
  }
  expect_failures = [var.machine]
}

run "a_field_that_machine_does_not_know" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { tokens_secret = "x" })
  }
  expect_failures = [var.machine]
}

run "a_cluster_name_with_capitals" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { cluster = "Demo" })
  }
  expect_failures = [var.machine]
}

run "a_region_that_is_a_zone" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { region = "eu-central-1a" })
  }
  expect_failures = [var.machine]
}

run "a_head_without_scaling" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { scaling = null })
  }
  expect_failures = [var.machine]
}

run "a_worker_without_its_head" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/worker.json")), { head_address = null })
  }
  expect_failures = [var.machine]
}

run "a_tracking_machine_without_database" {
  command = plan
  variables {
    machine = { role = "tracking", cluster = "demo", region = "eu-central-1", artifact_uri = "s3://demo-bucket/x" }
  }
  expect_failures = [var.machine]
}

run "a_token_instead_of_its_place" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { token_secret = "0123456789abcdef" })
  }
  expect_failures = [var.machine]
}

run "a_password_instead_of_its_place" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/tracking.json")), { database = { host = "db", secret = "hunter2" } })
  }
  expect_failures = [var.machine]
}

run "a_quote_in_the_environment" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { environment = { A = "it's" } })
  }
  expect_failures = [var.machine]
}

run "a_line_break_in_the_environment" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { environment = { A = "a\nb" } })
  }
  expect_failures = [var.machine]
}

run "a_variable_name_of_the_shell_s_grammar" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { environment = { "A;B" = "x" } })
  }
  expect_failures = [var.machine]
}

run "a_secret_in_the_environment" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), { environment = { AWS_SECRET_ACCESS_KEY = "x" } })
  }
  expect_failures = [var.machine]
}

run "a_short_sum" {
  command = plan
  variables {
    package = { bucket = "demo-bucket", key = "packages/x.tar.gz", sha256 = "0123" }
  }
  expect_failures = [var.package]
}

run "a_bucket_as_uri" {
  command = plan
  variables {
    package = { bucket = "s3://demo", key = "packages/x.tar.gz", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "a_key_with_a_leading_slash" {
  command = plan
  variables {
    package = { bucket = "demo-bucket", key = "/packages/x.tar.gz", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "a_key_with_a_command" {
  command = plan
  variables {
    package = { bucket = "demo-bucket", key = "x$(id)", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "a_python_with_arguments" {
  command = plan
  variables {
    python = "python3 -c"
  }
  expect_failures = [var.python]
}

run "a_scratch_folder_that_is_relative" {
  command = plan
  variables {
    scratch = "scratch"
  }
  expect_failures = [var.scratch]
}

run "a_scratch_folder_too_long_for_sockets" {
  command = plan
  variables {
    scratch = "/a-place-whose-path-is-much-too-long"
  }
  expect_failures = [var.scratch]
}

run "a_scratch_folder_of_the_system" {
  command = plan
  variables {
    scratch = "/etc/rungwise"
  }
  expect_failures = [var.scratch]
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
