# Where alarms go. The key is of our own because CloudWatch may not use the one that AWS keeps for
# SNS, and an alarm whose message cannot be encrypted is lost in silence.
resource "aws_kms_key" "alerts" {
  description             = "Alerts of ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7

  # In a key's policy the resource "*" is that key and no other.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        # The account's own policies decide who manages it; without this nobody could.
        Sid       = "Account"
        Effect    = "Allow"
        Principal = { AWS = "arn:${local.partition}:iam::${local.account_id}:root" }
        Action = [
          "kms:CancelKeyDeletion",
          "kms:Decrypt",
          "kms:DescribeKey",
          "kms:DisableKey",
          "kms:DisableKeyRotation",
          "kms:EnableKey",
          "kms:EnableKeyRotation",
          "kms:GenerateDataKey",
          "kms:GetKeyPolicy",
          "kms:GetKeyRotationStatus",
          "kms:ListKeyPolicies",
          "kms:ListResourceTags",
          "kms:PutKeyPolicy",
          "kms:ScheduleKeyDeletion",
          "kms:TagResource",
          "kms:UntagResource",
          "kms:UpdateKeyDescription",
        ]
        Resource = "*"
      },
      {
        Sid       = "Alarms"
        Effect    = "Allow"
        Principal = { Service = concat(["cloudwatch.amazonaws.com"], var.budget_stops_head ? ["budgets.amazonaws.com"] : []) }
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = "*"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
      },
    ]
  })

  tags = merge(var.tags, { Name = "${var.name}-alerts" })
}

resource "aws_sns_topic" "alerts" {
  name              = "${var.name}-alerts"
  kms_master_key_id = aws_kms_key.alerts.arn

  tags = merge(var.tags, { Name = "${var.name}-alerts" })
}

resource "aws_sns_topic_policy" "alerts" {
  arn = aws_sns_topic.alerts.arn

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Alarms"
      Effect    = "Allow"
      Principal = { Service = "cloudwatch.amazonaws.com" }
      Action    = "sns:Publish"
      Resource  = aws_sns_topic.alerts.arn
      Condition = {
        StringEquals = { "aws:SourceAccount" = local.account_id }
        ArnLike      = { "aws:SourceArn" = "arn:${local.partition}:cloudwatch:${var.region}:${local.account_id}:alarm:${var.name}-*" }
      }
    }]
  })
}

resource "aws_sns_topic_subscription" "alerts" {
  for_each = var.alert_emails

  topic_arn = aws_sns_topic.alerts.arn
  protocol  = "email"
  endpoint  = each.key
}
