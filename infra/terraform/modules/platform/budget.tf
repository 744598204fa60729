# Mail when the account's bill of the month reaches a share of the budget. It stops nothing.
resource "aws_budgets_budget" "this" {
  name         = "${var.name}-monthly"
  budget_type  = "COST"
  limit_amount = tostring(var.monthly_budget_usd)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"

  # Mail from Budgets itself wants no confirmation, so the first warning cannot be missed.
  dynamic "notification" {
    for_each = {
      half     = { type = "ACTUAL", percent = 50 }
      most     = { type = "ACTUAL", percent = 80 }
      all      = { type = "ACTUAL", percent = 100 }
      forecast = { type = "FORECASTED", percent = 100 }
    }

    content {
      notification_type          = notification.value.type
      comparison_operator        = "GREATER_THAN"
      threshold                  = notification.value.percent
      threshold_type             = "PERCENTAGE"
      subscriber_email_addresses = var.alert_emails
    }
  }
}
