# A spent budget, if it is to stop the head. Budgets tells a topic of its own, and an alarm sees that
# something was told: from there on it goes as with an idle head (stop_head.tf).
resource "aws_sns_topic" "budget" {
  count = var.budget_stops_head ? 1 : 0

  name              = local.spent
  kms_master_key_id = aws_kms_key.alerts.arn

  tags = merge(var.tags, { Name = local.spent })
}

resource "aws_sns_topic_policy" "budget" {
  count = var.budget_stops_head ? 1 : 0

  arn = aws_sns_topic.budget[0].arn

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Budgets"
      Effect    = "Allow"
      Principal = { Service = "budgets.amazonaws.com" }
      Action    = "sns:Publish"
      Resource  = aws_sns_topic.budget[0].arn
      Condition = {
        StringEquals = { "aws:SourceAccount" = local.account_id }
        ArnLike      = { "aws:SourceArn" = "arn:${local.partition}:budgets::${local.account_id}:*" }
      }
    }]
  })
}

# Metrics of a topic come late and one by one, so any of the last three periods counts.
resource "aws_cloudwatch_metric_alarm" "budget" {
  count = var.budget_stops_head ? 1 : 0

  alarm_name          = local.spent
  alarm_description   = "The monthly budget of ${var.name} is spent; the head is stopped."
  namespace           = "AWS/SNS"
  metric_name         = "NumberOfMessagesPublished"
  dimensions          = { TopicName = aws_sns_topic.budget[0].name }
  statistic           = "Sum"
  period              = local.period
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 3
  datapoints_to_alarm = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alerts.arn]

  tags = merge(var.tags, { Name = local.spent })
}
