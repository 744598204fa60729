# The control plane and its add-ons.
locals {
  # EKS makes this group and puts the control plane, every node and so every pod into it.
  node_security_group = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  cluster_arn         = "${local.arn}:eks:${var.region}:${local.account_id}:cluster/${var.name}"
}

# Made before EKS would make it, so that it is encrypted and ends some day.
resource "aws_cloudwatch_log_group" "eks" {
  #checkov:skip=CKV_AWS_338:a year of records is a cost that many do not want
  name              = "/aws/eks/${var.name}/cluster"
  retention_in_days = 30
  kms_key_id        = aws_kms_key.this.arn
}

# EKS encrypts the secrets of Kubernetes by the key.
resource "aws_iam_role_policy" "cluster_key" {
  name = "secrets-key"
  role = aws_iam_role.service["cluster"].id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"]
      Resource = aws_kms_key.this.arn
    }]
  })
}

resource "aws_eks_cluster" "this" {
  #checkov:skip=CKV_AWS_339:newer versions than this check knows are supported
  name     = var.name
  role_arn = aws_iam_role.service["cluster"].arn
  version  = var.kubernetes_version

  bootstrap_self_managed_addons = false
  deletion_protection           = var.deletion_protection
  enabled_cluster_log_types     = ["api", "audit", "authenticator", "controllerManager", "scheduler"]

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  encryption_config {
    resources = ["secrets"]

    provider {
      key_arn = aws_kms_key.this.arn
    }
  }

  upgrade_policy {
    support_type = "STANDARD" # extended support costs six times as much
  }

  vpc_config {
    subnet_ids              = values(aws_subnet.private)[*].id
    endpoint_private_access = true
    endpoint_public_access  = length(var.api_cidrs) > 0
    public_access_cidrs     = length(var.api_cidrs) > 0 ? var.api_cidrs : null
  }

  depends_on = [
    aws_cloudwatch_log_group.eks,
    aws_iam_role_policy.cluster_key,
    aws_iam_role_policy_attachment.service,
  ]
}

# A node is ready once these run, so node groups wait for them.
resource "aws_eks_addon" "node" {
  for_each = toset(["eks-pod-identity-agent", "kube-proxy", "vpc-cni"])

  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = each.key
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"
}

# These need a node to run on.
resource "aws_eks_addon" "pod" {
  for_each = toset(["aws-ebs-csi-driver", "coredns", "metrics-server"])

  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = each.key
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"

  depends_on = [aws_eks_node_group.this, aws_eks_pod_identity_association.this]
}
