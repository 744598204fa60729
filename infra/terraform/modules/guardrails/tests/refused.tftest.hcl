# Every validation, by an input that it refuses.
mock_provider "aws" {}

variables {
  name               = "research"
  region             = "us-east-1"
  monthly_budget_usd = 500
  alert_emails       = ["ops@example.org"]
  head_instance_id   = "i-0123456789abcdef0"
  autoscaling_groups = { workers = { name = "research-workers", minimum = 0, maximum = 4 } }
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

run "no_budget_is_refused" {
  command = plan

  variables {
    monthly_budget_usd = 0
  }

  expect_failures = [var.monthly_budget_usd]
}

run "a_budget_that_stops_the_head_of_machines_that_start_again_is_refused" {
  command = plan

  variables {
    budget_stops_head  = true
    autoscaling_groups = { workers = { name = "research-workers", minimum = 1, maximum = 4 } }
  }

  expect_failures = [var.budget_stops_head]
}

run "a_tag_without_a_key_is_refused" {
  command = plan

  variables {
    cost_tag = { key = "", value = "research" }
  }

  expect_failures = [var.cost_tag]
}

run "a_tag_without_a_value_is_refused" {
  command = plan

  variables {
    cost_tag = { key = "cluster", value = "" }
  }

  expect_failures = [var.cost_tag]
}

run "a_budget_that_nobody_hears_of_is_refused" {
  command = plan

  variables {
    alert_emails = []
  }

  expect_failures = [var.alert_emails]
}

run "eleven_addresses_are_refused" {
  command = plan

  variables {
    alert_emails = [for number in range(11) : "ops${number}@example.org"]
  }

  expect_failures = [var.alert_emails]
}

run "a_name_is_no_address" {
  command = plan

  variables {
    alert_emails = ["ops"]
  }

  expect_failures = [var.alert_emails]
}

run "a_group_with_more_minimum_than_maximum_is_refused" {
  command = plan

  variables {
    autoscaling_groups = { workers = { name = "research-workers", minimum = 2, maximum = 1 } }
  }

  expect_failures = [var.autoscaling_groups]
}

run "a_negative_minimum_is_refused" {
  command = plan

  variables {
    autoscaling_groups = { workers = { name = "research-workers", minimum = -1, maximum = 1 } }
  }

  expect_failures = [var.autoscaling_groups]
}

run "ten_groups_are_too_many_for_an_alarm" {
  command = plan

  variables {
    autoscaling_groups = { for n in range(10) : "group${n}" => { name = "research-${n}", minimum = 0, maximum = 1 } }
  }

  expect_failures = [var.autoscaling_groups]
}

run "every_minute_is_no_closing_time" {
  command = plan

  variables {
    off_hours = { stop = "* 20 * * *", start = "0 7 * * *", timezone = "UTC" }
  }

  expect_failures = [var.off_hours]
}

run "four_fields_are_no_cron_expression" {
  command = plan

  variables {
    off_hours = { stop = "0 20 * *", start = "0 7 * * *", timezone = "UTC" }
  }

  expect_failures = [var.off_hours]
}

run "an_hour_25_is_refused" {
  command = plan

  variables {
    off_hours = { stop = "0 25 * * *", start = "0 7 * * *", timezone = "UTC" }
  }

  expect_failures = [var.off_hours]
}

run "a_stop_at_the_start_is_refused" {
  command = plan

  variables {
    off_hours = { stop = "0 7 * * *", start = "0 7 * * *", timezone = "UTC" }
  }

  expect_failures = [var.off_hours]
}

run "an_offset_is_no_time_zone" {
  command = plan

  variables {
    off_hours = { stop = "0 20 * * *", start = "0 7 * * *", timezone = "+01:00" }
  }

  expect_failures = [var.off_hours]
}

run "ten_idle_minutes_are_too_few" {
  command = plan

  variables {
    idle = { minutes = 10 }
  }

  expect_failures = [var.idle]
}

run "more_than_a_day_is_too_long_for_an_alarm" {
  command = plan

  variables {
    idle = { minutes = 1445 }
  }

  expect_failures = [var.idle]
}

run "minutes_between_two_reports_are_refused" {
  command = plan

  variables {
    idle = { minutes = 32 }
  }

  expect_failures = [var.idle]
}

run "no_load_at_all_is_never_below" {
  command = plan

  variables {
    idle = { cpu_percent = 0 }
  }

  expect_failures = [var.idle]
}

run "a_full_head_is_not_idle" {
  command = plan

  variables {
    idle = { cpu_percent = 100 }
  }

  expect_failures = [var.idle]
}
