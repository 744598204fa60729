# The user data of each role is the golden file beside this one; golden/render.sh makes them anew.

variables {
  package = {
    bucket = "demo-bucket"
    key    = "packages/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.tar.gz"
    sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
}

run "a_head" {
  command = plan
  variables {
    machine = jsondecode(file("tests/golden/head.json"))
  }
  assert {
    condition     = output.user_data == file("tests/golden/head.sh")
    error_message = "The user data of a head is not tests/golden/head.sh."
  }
}

run "a_worker_on_spot" {
  command = plan
  variables {
    machine = jsondecode(file("tests/golden/worker.json"))
  }
  assert {
    condition     = output.user_data == file("tests/golden/worker.sh")
    error_message = "The user data of a worker is not tests/golden/worker.sh."
  }
}

run "a_worker_on_demand_watches_for_no_notice" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/worker.json")), { spot = false })
  }
  assert {
    condition     = !strcontains(output.user_data, "rungwise-notice") && strcontains(output.user_data, "rungwise-ray.service")
    error_message = "Only spot instances have notices."
  }
}

run "a_tracking_machine" {
  command = plan
  variables {
    machine = jsondecode(file("tests/golden/tracking.json"))
  }
  assert {
    condition     = output.user_data == file("tests/golden/tracking.sh")
    error_message = "The user data of a tracking machine is not tests/golden/tracking.sh."
  }
}

run "other_places_reach_the_script_and_the_units" {
  command = plan
  variables {
    machine = merge(jsondecode(file("tests/golden/head.json")), {
      environment = { HTTPS_PROXY = "http://proxy.internal:3128" }
    })
    python  = "/usr/bin/python3.12"
    scratch = "/mnt/fast"
  }
  assert {
    condition = alltrue([
      for expected in [
        "export HTTPS_PROXY='http://proxy.internal:3128'", "python=/usr/bin/python3.12\n",
        "RUNGWISE_SCRATCH=/mnt/fast\n", "ReadWritePaths=/mnt/fast\n",
      ] : strcontains(output.user_data, expected)
    ])
    error_message = "The environment, the Python and the scratch folder must reach the user data."
  }
}
