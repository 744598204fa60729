output "alerts_topic_arn" {
  description = "SNS topic that alarms named <name>-... may publish to; alert_emails are subscribed to it."
  value       = aws_sns_topic.alerts.arn
}

output "budget_name" {
  description = "Name of the budget in the billing console."
  value       = aws_budgets_budget.this.name
}

output "idle_alarm_name" {
  description = "Name of the alarm for an idle head, or null."
  value       = one(aws_cloudwatch_metric_alarm.idle[*].alarm_name)
}
