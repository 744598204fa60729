# One key for what the cluster keeps: objects, secrets, the database, its logs. Who may use it is
# said by roles; the key itself trusts the account and the logs service.
resource "aws_kms_key" "this" {
  description             = "Artifacts, secrets and database of ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7 # the shortest; a key in waiting costs nothing

  # In a key's policy the resource "*" is that key and no other.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        # Hands the decision to the policies of the account's roles and users. Without it nobody
        # could use or delete the key.
        Sid       = "Account"
        Effect    = "Allow"
        Principal = { AWS = "arn:${local.partition}:iam::${local.account_id}:root" }
        Action = [
          "kms:CancelKeyDeletion",
          "kms:CreateAlias",
          "kms:CreateGrant", # RDS and EBS hold the key by a grant
          "kms:Decrypt",
          "kms:DeleteAlias",
          "kms:DescribeKey",
          "kms:DisableKey",
          "kms:DisableKeyRotation",
          "kms:EnableKey",
          "kms:EnableKeyRotation",
          "kms:Encrypt",
          "kms:GenerateDataKey",
          "kms:GenerateDataKeyWithoutPlaintext",
          "kms:GetKeyPolicy",
          "kms:GetKeyRotationStatus",
          "kms:ListGrants",
          "kms:ListKeyPolicies",
          "kms:ListResourceTags",
          "kms:PutKeyPolicy",
          "kms:ReEncryptFrom",
          "kms:ReEncryptTo",
          "kms:RevokeGrant",
          "kms:ScheduleKeyDeletion",
          "kms:TagResource",
          "kms:UntagResource",
          "kms:UpdateAlias",
          "kms:UpdateKeyDescription",
        ]
        Resource = "*"
      },
      {
        # Log groups of this cluster: its own, and those that RDS names after the database.
        Sid       = "Logs"
        Effect    = "Allow"
        Principal = { Service = "logs.${var.region}.${local.dns_suffix}" }
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
          ArnLike = {
            "kms:EncryptionContext:aws:logs:arn" = [
              "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:/rungwise/${var.name}/*",
              "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:/aws/rds/instance/${var.name}-*",
            ]
          }
        }
      },
    ]
  })

  tags = merge(var.tags, { Name = var.name })
}

resource "aws_kms_alias" "this" {
  name          = "alias/rungwise/${var.name}"
  target_key_id = aws_kms_key.this.key_id
}
