# What bounds the bill: a budget that warns early and may stop the head, hours in which nothing may
# run, and an alarm for a head that waits for nobody.
data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition

  idle_alarm = "${var.name}-head-idle"
  spent      = "${var.name}-budget-spent"
}

resource "aws_budgets_budget" "this" {
  name         = "${var.name}-monthly"
  budget_type  = "COST"
  limit_amount = tostring(var.monthly_budget_usd)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"

  # What credits and refunds cover today is paid for tomorrow.
  cost_types {
    include_credit = false
    include_refund = false
  }

  dynamic "cost_filter" {
    for_each = var.cost_tag == null ? [] : [var.cost_tag]

    content {
      name   = "TagKeyValue"
      values = [format("user:%s$%s", cost_filter.value.key, cost_filter.value.value)]
    }
  }

  # Mail from Budgets itself wants no confirmation, so the first warning cannot be missed.
  dynamic "notification" {
    for_each = {
      half     = { type = "ACTUAL", percent = 50 }
      most     = { type = "ACTUAL", percent = 80 }
      all      = { type = "ACTUAL", percent = 100, topics = aws_sns_topic.budget[*].arn }
      forecast = { type = "FORECASTED", percent = 100 }
    }

    content {
      notification_type          = notification.value.type
      comparison_operator        = "GREATER_THAN"
      threshold                  = notification.value.percent
      threshold_type             = "PERCENTAGE"
      subscriber_email_addresses = var.alert_emails
      subscriber_sns_topic_arns  = try(notification.value.topics, [])
    }
  }

  tags = merge(var.tags, { Name = "${var.name}-monthly" })
}
