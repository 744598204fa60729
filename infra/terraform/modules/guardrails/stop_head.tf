# Stopping a head that is idle, or whose budget is spent, if asked. An alarm can stop a machine by
# itself only if it watches a single metric of that machine, which these do not. So their change of
# state starts AWS's own runbook that stops a machine, with a role that can stop the head and nothing
# else.
locals {
  stop_head = "${var.name}-stop-head"
  stopping = concat(
    try(var.idle.stop_head, false) ? aws_cloudwatch_metric_alarm.idle[*].arn : [],
    aws_cloudwatch_metric_alarm.budget[*].arn,
  )
  stop     = try(var.idle.stop_head, false) || var.budget_stops_head ? 1 : 0
  runbook  = "AWS-StopEC2Instance"
  head_arn = "arn:${local.partition}:ec2:${var.region}:${local.account_id}:instance/${var.head_instance_id}"
}

resource "aws_cloudwatch_event_rule" "stop_head" {
  count = local.stop

  name        = local.stop_head
  description = "The head of ${var.name} became idle or the budget is spent"

  event_pattern = jsonencode({
    source      = ["aws.cloudwatch"]
    detail-type = ["CloudWatch Alarm State Change"]
    resources   = local.stopping
    detail      = { state = { value = ["ALARM"] } }
  })

  tags = merge(var.tags, { Name = local.stop_head })
}

resource "aws_cloudwatch_event_target" "stop_head" {
  count = local.stop

  rule      = aws_cloudwatch_event_rule.stop_head[0].name
  target_id = "stop-head"
  arn       = "arn:${local.partition}:ssm:${var.region}::automation-definition/${local.runbook}:$DEFAULT"
  role_arn  = aws_iam_role.stop_head[0].arn

  input = jsonencode({
    InstanceId           = [var.head_instance_id]
    AutomationAssumeRole = [aws_iam_role.stop_head[0].arn]
  })
}

# One role for both steps: EventBridge starts the runbook with it, the runbook stops the head.
resource "aws_iam_role" "stop_head" {
  count = local.stop

  name        = local.stop_head
  description = "Stops the head of ${var.name} when it is idle or the budget is spent"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = ["events.amazonaws.com", "ssm.amazonaws.com"] }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
    }]
  })

  tags = merge(var.tags, { Name = local.stop_head })
}

resource "aws_iam_role_policy" "stop_head" {
  count = local.stop

  name = "stop-head"
  role = aws_iam_role.stop_head[0].id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "StartRunbook"
        Effect = "Allow"
        Action = "ssm:StartAutomationExecution"
        Resource = [
          "arn:${local.partition}:ssm:${var.region}::automation-definition/${local.runbook}:$DEFAULT",
          "arn:${local.partition}:ssm:${var.region}::document/${local.runbook}",
        ]
      },
      {
        Sid       = "GiveRunbookThisRole"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = aws_iam_role.stop_head[0].arn
        Condition = { StringEquals = { "iam:PassedToService" = "ssm.amazonaws.com" } }
      },
      {
        Sid      = "StopHead"
        Effect   = "Allow"
        Action   = "ec2:StopInstances"
        Resource = local.head_arn
      },
      {
        # The runbook waits until the head is stopped. AWS gives these actions no resource to name.
        Sid      = "SeeState"
        Effect   = "Allow"
        Action   = ["ec2:DescribeInstanceStatus", "ec2:DescribeInstances"]
        Resource = "*"
      },
    ]
  })
}
