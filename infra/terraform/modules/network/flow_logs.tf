# Who spoke to whom, accepted and refused: what one looks at after an incident.
locals {
  flow_log_group     = "/rungwise/${var.name}/flow"
  flow_log_group_arn = "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:${local.flow_log_group}"
}

# A key of its own, so that whoever reads artifacts cannot read these records, and the network
# stands without the bucket.
resource "aws_kms_key" "flow_logs" {
  description             = "Flow logs of ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7

  # In a key's policy the resource "*" is that key and no other.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        # The account's own policies decide who manages and reads; without this nobody could.
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
        Sid       = "FlowLogs"
        Effect    = "Allow"
        Principal = { Service = "logs.${var.region}.amazonaws.com${local.china ? ".cn" : ""}" }
        Action = [
          "kms:Decrypt",
          "kms:DescribeKey",
          "kms:Encrypt",
          "kms:GenerateDataKey",
          "kms:GenerateDataKeyWithoutPlaintext",
          "kms:ReEncryptFrom",
          "kms:ReEncryptTo",
        ]
        Resource = "*"
        Condition = {
          ArnEquals = { "kms:EncryptionContext:aws:logs:arn" = local.flow_log_group_arn }
        }
      },
    ]
  })

  tags = merge(var.tags, { Name = "${var.name}-flow-logs" })
}

resource "aws_cloudwatch_log_group" "flow" {
  #checkov:skip=CKV_AWS_338:how long the records are kept is flow_log_days; a year of them is a cost that many do not want
  name              = local.flow_log_group
  retention_in_days = var.flow_log_days
  kms_key_id        = aws_kms_key.flow_logs.arn

  tags = merge(var.tags, { Name = local.flow_log_group })
}

resource "aws_iam_role" "flow_logs" {
  name        = "${var.name}-flow-logs"
  description = "Lets the VPC of ${var.name} write its flow logs"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "vpc-flow-logs.amazonaws.com" }
      Action    = "sts:AssumeRole"
      # Not on behalf of another account's flow log.
      Condition = {
        StringEquals = { "aws:SourceAccount" = local.account_id }
        ArnLike      = { "aws:SourceArn" = "arn:${local.partition}:ec2:${var.region}:${local.account_id}:vpc-flow-log/*" }
      }
    }]
  })

  tags = merge(var.tags, { Name = "${var.name}-flow-logs" })
}

resource "aws_iam_role_policy" "flow_logs" {
  name = "write"
  role = aws_iam_role.flow_logs.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Write"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
        Resource = [local.flow_log_group_arn, "${local.flow_log_group_arn}:*"]
      },
      {
        # The service looks for its group among all of them; a single one cannot be named.
        Sid      = "Find"
        Effect   = "Allow"
        Action   = "logs:DescribeLogGroups"
        Resource = "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:*"
      },
    ]
  })
}

resource "aws_flow_log" "this" {
  vpc_id                   = aws_vpc.this.id
  traffic_type             = "ALL"
  log_destination_type     = "cloud-watch-logs"
  log_destination          = aws_cloudwatch_log_group.flow.arn
  iam_role_arn             = aws_iam_role.flow_logs.arn
  max_aggregation_interval = 600

  tags = merge(var.tags, { Name = var.name })
}
