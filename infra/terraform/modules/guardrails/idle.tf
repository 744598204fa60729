# A head without workers and without load. With any worker there, or wanted and not yet there, the
# value is 100, whatever the head does: a head that only watches a long training run looks idle by
# its CPU alone. A group that does not publish GroupDesiredCapacity leaves the value unknown, and an
# unknown value is no alarm.
locals {
  period  = 300 # seconds; EC2's metrics without a price
  watched = var.idle == null ? {} : { for index, group in keys(var.autoscaling_groups) : "workers${index}" => group }
  workers = length(local.watched) == 0 ? "0" : join(" + ", keys(local.watched))
}

resource "aws_cloudwatch_metric_alarm" "idle" {
  count = var.idle == null ? 0 : 1

  alarm_name          = local.idle_alarm
  alarm_description   = "No workers of ${var.name} and less than ${var.idle.cpu_percent} % CPU on its head for ${var.idle.minutes} minutes${var.idle.stop_head ? "; the head is stopped" : ""}."
  comparison_operator = "LessThanThreshold"
  threshold           = var.idle.cpu_percent
  evaluation_periods  = var.idle.minutes * 60 / local.period
  datapoints_to_alarm = var.idle.minutes * 60 / local.period
  treat_missing_data  = "notBreaching" # a head that is stopped reports nothing, and is not idle
  alarm_actions       = [aws_sns_topic.alerts.arn]

  metric_query {
    id          = "idle"
    label       = "CPU of the head, 100 while there are workers"
    expression  = "IF((${local.workers}) > 0, 100, head)"
    return_data = true
  }

  metric_query {
    id          = "head"
    return_data = false

    metric {
      namespace   = "AWS/EC2"
      metric_name = "CPUUtilization"
      dimensions  = { InstanceId = var.head_instance_id }
      stat        = "Maximum"
      period      = local.period
    }
  }

  dynamic "metric_query" {
    for_each = local.watched

    content {
      id          = metric_query.key
      return_data = false

      metric {
        namespace   = "AWS/AutoScaling"
        metric_name = "GroupDesiredCapacity"
        dimensions  = { AutoScalingGroupName = var.autoscaling_groups[metric_query.value].name }
        stat        = "Maximum"
        period      = local.period
      }
    }
  }

  tags = merge(var.tags, { Name = local.idle_alarm })
}
