output "alerts_topic_arn" {
  description = "Topic that alarms named <name>-... may write to and alert_emails read."
  value       = aws_sns_topic.alerts.arn
}

output "budget_name" {
  description = "The budget, as the billing console shows it."
  value       = aws_budgets_budget.this.name
}

output "idle_alarm_name" {
  description = "The alarm for an idle head, or null."
  value       = one(aws_cloudwatch_metric_alarm.idle[*].alarm_name)
}
