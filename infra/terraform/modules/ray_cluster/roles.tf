# Two roles. Neither can launch an instance, pass a role or read another cluster's objects. A job runs
# with the rights of the machine it is on: on the head it could raise a group to its maximum, no more.
data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  artifact_folder = trimprefix(var.storage.artifact_uri, "s3://${var.storage.bucket}/")

  # Credentials taken off a machine open nothing: the services see that a request did not come
  # through an endpoint of this VPC.
  from_this_vpc = { StringEquals = { "aws:SourceVpc" = var.network.vpc_id } }

  # How KMS names the services that use the key for a role, by the domain of either kind.
  via = {
    for service in ["s3", "secretsmanager"] : service => [
      for domain in distinct(["amazonaws.com", data.aws_partition.current.dns_suffix]) : "${service}.${var.region}.${domain}"
    ]
  }

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
      Sid       = "Package"
      Effect    = "Allow"
      Action    = ["s3:GetObject"]
      Resource  = ["${var.storage.bucket_arn}/${var.storage.package.key}"]
      Condition = local.from_this_vpc
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
      Resource  = ["${var.storage.bucket_arn}/${local.artifact_folder}/*"] # the objects of one folder
      Condition = local.from_this_vpc
    },
    {
      # Without it a missing object answers 403 in place of 404. A condition on s3:prefix would bring
      # that back, because reading one object has no prefix. It shows names, not contents.
      Sid       = "ArtifactNames"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = [var.storage.bucket_arn]
      Condition = local.from_this_vpc
    },
    {
      # The key only as S3 and Secrets Manager use it for this role.
      Sid       = "Key"
      Effect    = "Allow"
      Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource  = [var.storage.kms_key_arn]
      Condition = { StringEquals = { "kms:ViaService" = flatten(values(local.via)) } }
    },
    {
      # An instance of an autoscaling group has no ARN before it exists.
      Sid      = "SessionManagerInstance"
      Effect   = "Allow"
      Action   = ["ssm:UpdateInstanceInformation"]
      Resource = ["arn:${data.aws_partition.current.partition}:ec2:${var.region}:${data.aws_caller_identity.current.account_id}:instance/*"]
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
      Resource = ["*"]
    },
  ]

  data_arns = [for name in sort(keys(var.data_buckets)) : "arn:${data.aws_partition.current.partition}:s3:::${name}"]

  # Reading, of the buckets that are named. A policy takes no statement without a resource.
  data_statements = [for statement in [
    {
      Sid       = "Data"
      Effect    = "Allow"
      Action    = ["s3:GetObject"]
      Resource  = [for arn in local.data_arns : "${arn}/*"]
      Condition = local.from_this_vpc
    },
    {
      Sid       = "DataNames"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = local.data_arns
      Condition = local.from_this_vpc
    },
    {
      Sid       = "DataKeys"
      Effect    = "Allow"
      Action    = ["kms:Decrypt"]
      Resource  = distinct([for data in values(var.data_buckets) : data.kms_key_arn if data.kms_key_arn != null])
      Condition = { StringEquals = { "kms:ViaService" = local.via.s3 } }
    },
  ] : statement if length(statement.Resource) > 0]

  head_statements = [
    {
      Sid       = "Token"
      Effect    = "Allow"
      Action    = ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"]
      Resource  = [aws_secretsmanager_secret.token.arn]
      Condition = local.from_this_vpc
    },
    {
      # AWS gives describing no resource-level permission.
      Sid       = "SeeGroups"
      Effect    = "Allow"
      Action    = ["autoscaling:DescribeAutoScalingGroups"]
      Resource  = ["*"]
      Condition = local.from_this_vpc
    },
    {
      Sid       = "ScaleGroups"
      Effect    = "Allow"
      Action    = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
      Resource  = [for name in sort(keys(var.worker_groups)) : aws_autoscaling_group.worker[name].arn]
      Condition = local.from_this_vpc
    },
  ]

  worker_statements = [
    {
      Sid       = "Token"
      Effect    = "Allow"
      Action    = ["secretsmanager:GetSecretValue"]
      Resource  = [aws_secretsmanager_secret.token.arn]
      Condition = local.from_this_vpc
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
  policy = jsonencode({ Version = "2012-10-17", Statement = concat(local.common_statements, local.data_statements, local.head_statements) })
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
  policy = jsonencode({ Version = "2012-10-17", Statement = concat(local.common_statements, local.data_statements, local.worker_statements) })
}

resource "aws_iam_instance_profile" "worker" {
  name = "${var.name}-worker"
  role = aws_iam_role.worker.name
  tags = merge(var.tags, { Name = "${var.name}-worker" })
}

# Apart from the other rights, because the groups are made after those: a worker without a head takes
# itself out of its group.
resource "aws_iam_role_policy" "worker_leaves" {
  name = "${var.name}-worker-leaves"
  role = aws_iam_role.worker.id
  policy = jsonencode({ Version = "2012-10-17", Statement = [{
    Sid       = "LeaveGroup"
    Effect    = "Allow"
    Action    = ["autoscaling:TerminateInstanceInAutoScalingGroup"]
    Resource  = [for name in sort(keys(var.worker_groups)) : aws_autoscaling_group.worker[name].arn]
    Condition = local.from_this_vpc
  }] })
}
