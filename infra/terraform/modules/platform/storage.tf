# One bucket for artifacts, versioned, and one key for everything that the cluster keeps.
resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_18:access logs want a second bucket that outlives this one; whoever needs them turns on CloudTrail data events for the account
  #checkov:skip=CKV_AWS_144:artifacts can be rebuilt from their lineage; a copy in another region is a cost for each owner to decide
  #checkov:skip=CKV2_AWS_62:nothing waits for new objects; an artifact counts when its record is written
  bucket_prefix = "${var.name}-" # AWS adds the rest, so that no two accounts want the same name
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = true # one call to KMS for many objects

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.this.arn
    }
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket = aws_s3_bucket.this.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    id     = "old-versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = 30
    }

    # What is left of a deleted object once its versions are gone.
    expiration {
      expired_object_delete_marker = true
    }
  }

  rule {
    id     = "broken-uploads"
    status = "Enabled"

    filter {}

    # A killed checkpoint upload is invisible and paid for until somebody ends it.
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}

# The bucket's policy only takes away. What it leaves, roles give.
locals {
  prefix  = "rungwise" # artifacts and MLflow's files
  objects = "${aws_s3_bucket.this.arn}/*"

  refusals = [
    {
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*" # refused, not granted
      Resource  = [aws_s3_bucket.this.arn, local.objects]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    },
    # Who asks for no encryption gets the bucket's own, which is the key. Who asks for another
    # algorithm or another key is refused.
    {
      Sid       = "EncryptedByKms"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:PutObject"
      Resource  = [local.objects]
      Condition = {
        Null            = { "s3:x-amz-server-side-encryption" = "false" }
        StringNotEquals = { "s3:x-amz-server-side-encryption" = "aws:kms" }
      }
    },
    {
      Sid       = "EncryptedByThisKey"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:PutObject"
      Resource  = [local.objects]
      Condition = {
        Null            = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = "false" }
        StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = aws_kms_key.this.arn }
      }
    },
  ]
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id

  policy = jsonencode({ Version = "2012-10-17", Statement = local.refusals })

  # A policy for everybody, even one that only refuses, is looked at by the block of public access.
  depends_on = [aws_s3_bucket_public_access_block.this]
}

# Roles say who may use the key; the key itself trusts the account and the logs service.
resource "aws_kms_key" "this" {
  description             = "Artifacts, secrets, images and database of ${var.name}"
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
        Principal = { AWS = "${local.arn}:iam::${local.account_id}:root" }
        Action = [
          "kms:CancelKeyDeletion", "kms:ScheduleKeyDeletion", "kms:DisableKey", "kms:EnableKey",
          "kms:DisableKeyRotation", "kms:EnableKeyRotation", "kms:GetKeyRotationStatus",
          "kms:GetKeyPolicy", "kms:ListKeyPolicies", "kms:PutKeyPolicy", "kms:UpdateKeyDescription",
          "kms:CreateAlias", "kms:DeleteAlias", "kms:UpdateAlias",
          "kms:ListResourceTags", "kms:TagResource", "kms:UntagResource",
          "kms:CreateGrant", "kms:ListGrants", "kms:RevokeGrant", # RDS, ECR, EKS and EBS hold the key by a grant
          "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt",
          "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo",
        ]
        Resource = "*"
      },
      {
        # The log group of the control plane.
        Sid       = "Logs"
        Effect    = "Allow"
        Principal = { Service = "logs.${var.region}.amazonaws.com" }
        Action = [
          "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey",
          "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo",
        ]
        Resource = "*"
        Condition = {
          ArnLike = {
            "kms:EncryptionContext:aws:logs:arn" = "${local.arn}:logs:${var.region}:${local.account_id}:log-group:/aws/eks/${var.name}/*"
          }
        }
      },
    ]
  })

  tags = { Name = var.name }
}
