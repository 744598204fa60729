# Two roles. Neither can launch an instance, pass a role or read another cluster's objects. A job runs
# with the rights of the machine it is on: on the head it could raise a group to its maximum, no more.
locals {
  artifact_folder = trimprefix(var.artifact_uri, "s3://${var.bucket}/")

  assume_by_ec2 = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })

  common_statements = [
    {
      Sid      = "Package"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = ["${var.bucket_arn}/${var.package.key}"]
    },
    {
      # Versions stay: deleting writes a marker, and no right to delete a version is given.
      Sid    = "Artifacts"
      Effect = "Allow"
      Action = [
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:GetObject",
        "s3:ListMultipartUploadParts",
        "s3:PutObject",
      ]
      Resource = ["${var.bucket_arn}/${local.artifact_folder}/*"] # the objects of one folder
    },
    {
      # Without it a missing object answers 403 in place of 404. A condition on s3:prefix would bring
      # that back, because reading one object has no prefix. It shows names, not contents.
      Sid      = "ArtifactNames"
      Effect   = "Allow"
      Action   = ["s3:ListBucket"]
      Resource = [var.bucket_arn]
    },
    {
      Sid      = "Key"
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource = [var.kms_key_arn]
    },
    {
      # Session Manager's agent. AWS gives the channels no resource-level permission, and an instance
      # of an autoscaling group has no ARN before it exists.
      Sid    = "SessionManager"
      Effect = "Allow"
      Action = [
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
      ]
      Resource = ["*"]
    },
  ]

  head_statements = [
    {
      Sid      = "Token"
      Effect   = "Allow"
      Action   = ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"]
      Resource = [aws_secretsmanager_secret.token.arn]
    },
    {
      # AWS gives describing no resource-level permission.
      Sid      = "SeeGroups"
      Effect   = "Allow"
      Action   = ["autoscaling:DescribeAutoScalingGroups"]
      Resource = ["*"]
    },
    {
      Sid      = "ScaleGroups"
      Effect   = "Allow"
      Action   = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
      Resource = [for name in sort(keys(var.worker_groups)) : aws_autoscaling_group.worker[name].arn]
    },
  ]

  worker_statements = [
    {
      Sid      = "Token"
      Effect   = "Allow"
      Action   = ["secretsmanager:GetSecretValue"]
      Resource = [aws_secretsmanager_secret.token.arn]
    },
  ]
}

resource "aws_iam_role" "head" {
  name               = "${var.name}-head"
  description        = "Head of the Ray cluster ${var.name}"
  assume_role_policy = local.assume_by_ec2
  tags               = merge(var.tags, { Name = "${var.name}-head" })
}

resource "aws_iam_role_policy" "head" {
  name   = "${var.name}-head"
  role   = aws_iam_role.head.id
  policy = jsonencode({ Version = "2012-10-17", Statement = concat(local.common_statements, local.head_statements) })
}

resource "aws_iam_instance_profile" "head" {
  name = "${var.name}-head"
  role = aws_iam_role.head.name
  tags = merge(var.tags, { Name = "${var.name}-head" })
}

resource "aws_iam_role" "worker" {
  name               = "${var.name}-worker"
  description        = "Workers of the Ray cluster ${var.name}"
  assume_role_policy = local.assume_by_ec2
  tags               = merge(var.tags, { Name = "${var.name}-worker" })
}

resource "aws_iam_role_policy" "worker" {
  name   = "${var.name}-worker"
  role   = aws_iam_role.worker.id
  policy = jsonencode({ Version = "2012-10-17", Statement = concat(local.common_statements, local.worker_statements) })
}

resource "aws_iam_instance_profile" "worker" {
  name = "${var.name}-worker"
  role = aws_iam_role.worker.name
  tags = merge(var.tags, { Name = "${var.name}-worker" })
}
