# What the MLflow host may do: read the package, read and write its folder of the bucket, read the
# database's password, and be reached by Session Manager.
data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition
  folder     = trimprefix(var.storage.artifact_uri, "s3://${var.storage.bucket}/")

  # Credentials taken off the machine open nothing: the services see that a request did not come
  # through an endpoint of this VPC.
  from_this_vpc = { "aws:SourceVpc" = var.network.vpc_id }
}

resource "aws_iam_role" "this" {
  name        = "${var.name}-tracking"
  description = "MLflow host of ${var.name}"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })

  tags = merge(var.tags, { Name = "${var.name}-tracking" })
}

resource "aws_iam_instance_profile" "this" {
  name = "${var.name}-tracking"
  role = aws_iam_role.this.name

  tags = merge(var.tags, { Name = "${var.name}-tracking" })
}

resource "aws_iam_role_policy" "this" {
  name = "tracking"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Package"
        Effect    = "Allow"
        Action    = "s3:GetObject"
        Resource  = "${var.storage.bucket_arn}/${var.storage.package.key}"
        Condition = { StringEquals = local.from_this_vpc }
      },
      {
        # No deletion: MLflow marks runs as deleted in the database and keeps their files.
        Sid    = "Artifacts"
        Effect = "Allow"
        Action = [
          "s3:AbortMultipartUpload", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject",
        ]
        Resource  = "${var.storage.bucket_arn}/${local.folder}/*"
        Condition = { StringEquals = local.from_this_vpc }
      },
      {
        Sid      = "ListArtifacts"
        Effect   = "Allow"
        Action   = "s3:ListBucket"
        Resource = var.storage.bucket_arn
        Condition = {
          StringEquals = local.from_this_vpc
          StringLike   = { "s3:prefix" = [local.folder, "${local.folder}/*"] }
        }
      },
      {
        Sid       = "DatabasePassword"
        Effect    = "Allow"
        Action    = "secretsmanager:GetSecretValue"
        Resource  = local.secret
        Condition = { StringEquals = local.from_this_vpc }
      },
      {
        # The key only as S3 and Secrets Manager use it for this role.
        Sid      = "Key"
        Effect   = "Allow"
        Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource = var.storage.kms_key_arn
        Condition = {
          StringEquals = {
            "kms:ViaService" = flatten([
              for domain in distinct(["amazonaws.com", data.aws_partition.current.dns_suffix]) :
              ["s3.${var.region}.${domain}", "secretsmanager.${var.region}.${domain}"]
            ])
          }
        }
      },
      {
        Sid      = "SessionManagerInstance"
        Effect   = "Allow"
        Action   = "ssm:UpdateInstanceInformation"
        Resource = "arn:${local.partition}:ec2:${var.region}:${local.account_id}:instance/*"
      },
      {
        # AWS gives these actions no resource to name: a channel belongs to the machine that asks.
        Sid    = "SessionManagerChannels"
        Effect = "Allow"
        Action = [
          "ssmmessages:CreateControlChannel",
          "ssmmessages:CreateDataChannel",
          "ssmmessages:OpenControlChannel",
          "ssmmessages:OpenDataChannel",
        ]
        Resource = "*"
      },
    ]
  })
}
