# Roles: one for each AWS service, and one for each service account that calls AWS, by EKS Pod
# Identity. No pod has an access key.
locals {
  services = {
    cluster = { principal = "eks.amazonaws.com", policies = ["AmazonEKSClusterPolicy"] }
    node = {
      principal = "ec2.amazonaws.com"
      policies = [
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonEKSWorkerNodePolicy",
        "AmazonEKS_CNI_Policy", # the CNI runs before the agent that would give it a role
      ]
    }
  }
  attachments = merge([
    for name, service in local.services : {
      for policy in service.policies : policy => { role = name, policy = policy }
    }
  ]...)

  pods = {
    ray        = { namespace = var.namespace, statements = concat(local.artifacts, local.data) }
    mlflow     = { namespace = var.namespace, statements = concat(local.artifacts, local.password) }
    autoscaler = { namespace = "kube-system", statements = local.scaling }
    volumes    = { namespace = "kube-system", statements = [] } # has AWS's own policy
  }
  service_accounts = {
    ray        = "rungwise"
    mlflow     = "mlflow"
    autoscaler = "cluster-autoscaler"
    volumes    = "ebs-csi-controller-sa"
  }

  # Credentials of a pod are good for objects only through the endpoint of this VPC.
  through_endpoint = { StringEquals = { "aws:SourceVpce" = aws_vpc_endpoint.s3.id } }

  artifacts = [
    {
      Sid       = "Objects"
      Effect    = "Allow"
      Action    = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject"]
      Resource  = "${aws_s3_bucket.this.arn}/${local.prefix}/*"
      Condition = local.through_endpoint
    },
    {
      Sid      = "List"
      Effect   = "Allow"
      Action   = "s3:ListBucket"
      Resource = aws_s3_bucket.this.arn
      Condition = merge(local.through_endpoint, {
        StringLike = { "s3:prefix" = [local.prefix, "${local.prefix}/*"] }
      })
    },
    {
      Sid       = "Key"
      Effect    = "Allow"
      Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource  = aws_kms_key.this.arn
      Condition = { StringEquals = { "kms:ViaService" = "s3.${var.region}.amazonaws.com" } }
    },
  ]

  data = length(var.data_buckets) == 0 ? [] : [{
    Sid       = "Corpora"
    Effect    = "Allow"
    Action    = ["s3:GetObject", "s3:ListBucket"]
    Resource  = flatten([for bucket in var.data_buckets : ["${local.arn}:s3:::${bucket}", "${local.arn}:s3:::${bucket}/*"]])
    Condition = local.through_endpoint
  }]

  password = [
    {
      Sid      = "Password"
      Effect   = "Allow"
      Action   = "secretsmanager:GetSecretValue"
      Resource = aws_db_instance.this.master_user_secret[*].secret_arn
    },
    {
      Sid       = "PasswordKey"
      Effect    = "Allow"
      Action    = "kms:Decrypt"
      Resource  = aws_kms_key.this.arn
      Condition = { StringEquals = { "kms:ViaService" = "secretsmanager.${var.region}.amazonaws.com" } }
    },
  ]

  scaling = [
    {
      # None of these can name a resource.
      Sid    = "Look"
      Effect = "Allow"
      Action = [
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeAutoScalingInstances",
        "autoscaling:DescribeLaunchConfigurations",
        "autoscaling:DescribeScalingActivities",
        "autoscaling:DescribeTags",
        "ec2:DescribeImages",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeLaunchTemplateVersions",
        "ec2:GetInstanceTypesFromInstanceRequirements",
      ]
      Resource = "*"
    },
    {
      # Labels and taints of a group without nodes.
      Sid      = "Groups"
      Effect   = "Allow"
      Action   = "eks:DescribeNodegroup"
      Resource = "${local.arn}:eks:${var.region}:${local.account_id}:nodegroup/${var.name}/*"
    },
    {
      Sid      = "Scale"
      Effect   = "Allow"
      Action   = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
      Resource = "${local.arn}:autoscaling:${var.region}:${local.account_id}:autoScalingGroup:*:autoScalingGroupName/eks-*"
      # EKS puts this tag on the groups that it manages.
      Condition = { StringEquals = { "aws:ResourceTag/k8s.io/cluster-autoscaler/${var.name}" = "owned" } }
    },
  ]
}

resource "aws_iam_role" "service" {
  for_each = local.services

  name        = "${var.name}-${each.key}"
  description = "${each.key} of ${var.name}"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = each.value.principal }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "service" {
  for_each = local.attachments

  role       = aws_iam_role.service[each.value.role].name
  policy_arn = "${local.arn}:iam::aws:policy/${each.value.policy}"
}

resource "aws_iam_role" "pod" {
  for_each = local.pods

  name        = "${var.name}-pod-${each.key}"
  description = "Service account ${local.service_accounts[each.key]} of ${var.name}"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      # This cluster's pods, and no other's.
      Condition = {
        StringEquals = { "aws:SourceAccount" = local.account_id }
        ArnEquals    = { "aws:SourceArn" = local.cluster_arn }
      }
    }]
  })
}

resource "aws_iam_role_policy" "pod" {
  for_each = { for name, pod in local.pods : name => pod if length(pod.statements) > 0 }

  name   = "pod"
  role   = aws_iam_role.pod[each.key].id
  policy = jsonencode({ Version = "2012-10-17", Statement = each.value.statements })
}

# Volumes of claims, such as a durable head's; the driver touches those that it has tagged itself.
resource "aws_iam_role_policy_attachment" "volumes" {
  role       = aws_iam_role.pod["volumes"].name
  policy_arn = "${local.arn}:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy"
}

resource "aws_eks_pod_identity_association" "this" {
  for_each = local.pods

  cluster_name    = aws_eks_cluster.this.name
  namespace       = each.value.namespace
  service_account = local.service_accounts[each.key]
  role_arn        = aws_iam_role.pod[each.key].arn
}
