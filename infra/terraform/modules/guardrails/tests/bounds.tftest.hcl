# What bounds the bill, by default and if more is asked.
mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_resource "aws_cloudwatch_metric_alarm" {
    defaults = { arn = "arn:aws:cloudwatch:us-east-1:123456789012:alarm:research-head-idle" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/research-stop-head" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555" }
  }
  mock_resource "aws_sns_topic" {
    defaults = { arn = "arn:aws:sns:us-east-1:123456789012:research-alerts" }
  }
}

variables {
  name               = "research"
  region             = "us-east-1"
  monthly_budget_usd = 500
  alert_emails       = ["ops@example.org", "owner@example.org"]
  head_instance_id   = "i-0123456789abcdef0"
  autoscaling_groups = {
    cpu = { name = "research-cpu", minimum = 1, maximum = 4 }
    gpu = { name = "research-gpu", minimum = 0, maximum = 8 }
  }
  tags = { cluster = "research" }
}

run "the_budget_warns_before_it_is_spent" {
  assert {
    condition = (
      aws_budgets_budget.this.limit_amount == "500" && aws_budgets_budget.this.limit_unit == "USD"
      && aws_budgets_budget.this.time_unit == "MONTHLY"
    )
    error_message = "US dollars a month."
  }

  assert {
    condition = toset([
      for each in aws_budgets_budget.this.notification : "${each.notification_type} ${each.threshold}"
      if each.threshold_type == "PERCENTAGE" && each.comparison_operator == "GREATER_THAN"
    ]) == toset(["ACTUAL 50", "ACTUAL 80", "ACTUAL 100", "FORECASTED 100"])
    error_message = "What was spent at half, most and all of it, and what is expected."
  }

  assert {
    condition     = alltrue([for each in aws_budgets_budget.this.notification : each.subscriber_email_addresses == var.alert_emails])
    error_message = "Everybody hears of everything."
  }

  assert {
    condition     = !aws_budgets_budget.this.cost_types[0].include_credit && !aws_budgets_budget.this.cost_types[0].include_refund
    error_message = "Credits hide no spending."
  }

  assert {
    condition     = length(aws_budgets_budget.this.cost_filter) == 0
    error_message = "The whole account is counted unless a tag is named."
  }
}

run "a_tag_narrows_the_budget" {
  variables {
    cost_tag = { key = "cluster", value = "research" }
  }

  assert {
    condition     = [for each in aws_budgets_budget.this.cost_filter : concat([each.name], each.values)] == [["TagKeyValue", "user:cluster$research"]]
    error_message = "The filter is written as Budgets wants it."
  }
}

run "groups_run_at_any_hour_unless_told" {
  assert {
    condition     = length(aws_autoscaling_schedule.stop) == 0 && length(aws_autoscaling_schedule.start) == 0
    error_message = "No schedule by default."
  }
}

run "off_hours_close_every_group_and_open_it_as_it_was" {
  variables {
    off_hours = { stop = "0 20 * * 1-5", start = "30 7 * * MON-FRI", timezone = "Europe/Berlin" }
  }

  assert {
    condition = { for key, each in aws_autoscaling_schedule.stop : key => [each.autoscaling_group_name, each.min_size, each.max_size, each.desired_capacity] } == {
      cpu = ["research-cpu", 0, 0, 0], gpu = ["research-gpu", 0, 0, 0]
    }
    error_message = "Off hours take the minimum, the maximum and the capacity to 0."
  }

  assert {
    condition = { for key, each in aws_autoscaling_schedule.start : key => [each.autoscaling_group_name, each.min_size, each.max_size, each.desired_capacity] } == {
      cpu = ["research-cpu", 1, 4, 1], gpu = ["research-gpu", 0, 8, 0]
    }
    error_message = "Each group gets back its own minimum and maximum, and starts with its minimum."
  }

  assert {
    condition = (
      alltrue([for each in aws_autoscaling_schedule.stop : each.recurrence == "0 20 * * 1-5" && each.time_zone == "Europe/Berlin"])
      && alltrue([for each in aws_autoscaling_schedule.start : each.recurrence == "30 7 * * MON-FRI" && each.time_zone == "Europe/Berlin"])
    )
    error_message = "By the clock of the time zone."
  }
}

run "an_idle_head_is_told_of_and_left_alone" {
  assert {
    condition = (
      aws_cloudwatch_metric_alarm.idle[0].evaluation_periods == 12
      && aws_cloudwatch_metric_alarm.idle[0].datapoints_to_alarm == 12
      && aws_cloudwatch_metric_alarm.idle[0].threshold == 10
      && aws_cloudwatch_metric_alarm.idle[0].comparison_operator == "LessThanThreshold"
      && aws_cloudwatch_metric_alarm.idle[0].treat_missing_data == "notBreaching"
    )
    error_message = "Below a tenth for a whole hour; a head without reports is not idle."
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.idle[0].alarm_actions == toset([aws_sns_topic.alerts.arn])
    error_message = "The alarm tells the topic."
  }

  assert {
    condition = (
      length(aws_cloudwatch_event_rule.stop_head) == 0 && length(aws_sns_topic.budget) == 0 && length(aws_cloudwatch_event_target.stop_head) == 0
      && length(aws_iam_role.stop_head) == 0 && length(aws_iam_role_policy.stop_head) == 0
    )
    error_message = "Nothing may stop the head unless asked."
  }
}

run "a_head_with_workers_is_never_idle" {
  assert {
    condition = {
      for each in aws_cloudwatch_metric_alarm.idle[0].metric_query : each.id => each.expression if each.return_data == true
    } == { idle = "IF((workers0 + workers1) > 0, 100, head)" }
    error_message = "With any worker the value is 100, else the head's load."
  }

  assert {
    condition = {
      for each in aws_cloudwatch_metric_alarm.idle[0].metric_query :
      each.id => [each.metric[0].metric_name, each.metric[0].stat, values(each.metric[0].dimensions)[0]] if each.return_data != true
      } == {
      head     = ["CPUUtilization", "Maximum", "i-0123456789abcdef0"]
      workers0 = ["GroupDesiredCapacity", "Maximum", "research-cpu"]
      workers1 = ["GroupDesiredCapacity", "Maximum", "research-gpu"]
    }
    error_message = "Every group is counted by the machines it wants."
  }
}

run "a_head_without_groups_is_judged_by_its_load_alone" {
  command = plan

  variables {
    autoscaling_groups = {}
  }

  assert {
    condition     = contains([for each in aws_cloudwatch_metric_alarm.idle[0].metric_query : each.expression], "IF((0) > 0, 100, head)")
    error_message = "The expression is one without groups too."
  }
}

run "nothing_is_watched_if_told_so" {
  variables {
    idle = null
  }

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.idle) == 0 && output.idle_alarm_name == null && length(aws_iam_role.stop_head) == 0
    error_message = "Without idle there is no alarm and nobody to stop the head."
  }
}

run "without_the_alarm_any_number_of_groups_is_fine" {
  command = plan

  variables {
    idle               = null
    autoscaling_groups = { for n in range(12) : "group${n}" => { name = "research-${n}", minimum = 0, maximum = 1 } }
  }
}

run "an_idle_head_is_stopped_if_asked" {
  variables {
    idle = { minutes = 30, cpu_percent = 5, stop_head = true }
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.idle[0].evaluation_periods == 6 && aws_cloudwatch_metric_alarm.idle[0].threshold == 5
    error_message = "The choices reach the alarm."
  }

  assert {
    condition = jsondecode(aws_cloudwatch_event_rule.stop_head[0].event_pattern) == {
      source      = ["aws.cloudwatch"]
      detail-type = ["CloudWatch Alarm State Change"]
      resources   = [aws_cloudwatch_metric_alarm.idle[0].arn]
      detail      = { state = { value = ["ALARM"] } }
    }
    error_message = "Only this alarm, and only when it goes off."
  }

  assert {
    condition = (
      aws_cloudwatch_event_target.stop_head[0].arn == "arn:aws:ssm:us-east-1::automation-definition/AWS-StopEC2Instance:$DEFAULT"
      && jsondecode(aws_cloudwatch_event_target.stop_head[0].input).InstanceId == ["i-0123456789abcdef0"]
    )
    error_message = "The runbook stops the head."
  }

  assert {
    condition = {
      for statement in jsondecode(aws_iam_role_policy.stop_head[0].policy).Statement : statement.Sid => statement.Resource
      if contains(["StopHead", "SeeState", "GiveRunbookThisRole"], statement.Sid)
      } == {
      StopHead            = "arn:aws:ec2:us-east-1:123456789012:instance/i-0123456789abcdef0"
      SeeState            = "*"
      GiveRunbookThisRole = aws_iam_role.stop_head[0].arn
    }
    error_message = "The role stops the head and nothing else."
  }
}

run "a_spent_budget_stops_the_head_if_asked" {
  variables {
    budget_stops_head  = true
    autoscaling_groups = { cpu = { name = "research-cpu", minimum = 0, maximum = 4 } }
  }

  assert {
    condition = {
      for each in aws_budgets_budget.this.notification : "${each.notification_type} ${each.threshold}" => each.subscriber_sns_topic_arns
      if length(each.subscriber_sns_topic_arns) > 0
    } == { "ACTUAL 100" = toset([aws_sns_topic.budget[0].arn]) }
    error_message = "The topic hears of the whole budget alone, once it is spent."
  }

  assert {
    condition = (
      jsondecode(aws_sns_topic_policy.budget[0].policy).Statement[0].Principal == { Service = "budgets.amazonaws.com" }
      && jsondecode(aws_sns_topic_policy.budget[0].policy).Statement[0].Condition.ArnLike["aws:SourceArn"] == "arn:aws:budgets::123456789012:*"
      && aws_sns_topic.budget[0].kms_master_key_id == aws_kms_key.alerts.arn
    )
    error_message = "Budgets of this account alone may write to it, with the key."
  }

  assert {
    condition     = contains(flatten([for statement in jsondecode(aws_kms_key.alerts.policy).Statement : try(statement.Principal.Service, [])]), "budgets.amazonaws.com")
    error_message = "Budgets may use the key."
  }

  assert {
    condition = (
      aws_cloudwatch_metric_alarm.budget[0].namespace == "AWS/SNS"
      && aws_cloudwatch_metric_alarm.budget[0].metric_name == "NumberOfMessagesPublished"
      && aws_cloudwatch_metric_alarm.budget[0].dimensions == tomap({ TopicName = "research-budget-spent" })
      && aws_cloudwatch_metric_alarm.budget[0].statistic == "Sum" && aws_cloudwatch_metric_alarm.budget[0].threshold == 0
      && aws_cloudwatch_metric_alarm.budget[0].comparison_operator == "GreaterThanThreshold"
      && aws_cloudwatch_metric_alarm.budget[0].datapoints_to_alarm == 1
    )
    error_message = "One message is an alarm."
  }

  assert {
    condition     = jsondecode(aws_cloudwatch_event_rule.stop_head[0].event_pattern).resources == [aws_cloudwatch_metric_alarm.budget[0].arn]
    error_message = "That alarm stops the head, and an idle head still only tells."
  }

  assert {
    condition     = jsondecode(aws_cloudwatch_event_target.stop_head[0].input).InstanceId == ["i-0123456789abcdef0"]
    error_message = "The runbook stops the head."
  }
}

run "alerts_are_encrypted_by_a_key_that_alarms_may_use" {
  assert {
    condition     = aws_sns_topic.alerts.kms_master_key_id == aws_kms_key.alerts.arn && aws_kms_key.alerts.enable_key_rotation
    error_message = "The topic's key is ours, and rotates."
  }

  assert {
    condition = [
      for statement in jsondecode(aws_kms_key.alerts.policy).Statement : toset(statement.Action)
      if contains(try(statement.Principal.Service, []), "cloudwatch.amazonaws.com")
    ] == [toset(["kms:Decrypt", "kms:GenerateDataKey"])]
    error_message = "CloudWatch may encrypt what it sends."
  }

  assert {
    condition     = jsondecode(aws_sns_topic_policy.alerts.policy).Statement[0].Condition.ArnLike["aws:SourceArn"] == "arn:aws:cloudwatch:us-east-1:123456789012:alarm:research-*"
    error_message = "Only this cluster's alarms may write."
  }

  assert {
    condition     = { for email, each in aws_sns_topic_subscription.alerts : email => each.protocol } == { "ops@example.org" = "email", "owner@example.org" = "email" }
    error_message = "Everybody hears of it by mail."
  }
}

run "everything_bears_the_tags_and_a_name" {
  assert {
    condition = alltrue([
      for tags in [
        aws_budgets_budget.this.tags, aws_sns_topic.alerts.tags, aws_kms_key.alerts.tags,
        aws_cloudwatch_metric_alarm.idle[0].tags,
      ] : tags.cluster == "research" && tags.Name != ""
    ])
    error_message = "Tags reach every resource, with a Name."
  }
}
