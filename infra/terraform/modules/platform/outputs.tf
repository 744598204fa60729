output "artifact_uri" {
  description = "Folder in the bucket for artifacts and MLflow's files: RUNGWISE_ROOT of the pods."
  value       = "s3://${aws_s3_bucket.this.id}/${local.prefix}"

  # Nobody writes before the rules stand.
  depends_on = [aws_s3_bucket_policy.this, aws_s3_bucket_server_side_encryption_configuration.this]
}

output "repository_url" {
  description = "ECR repository of the image."
  value       = aws_ecr_repository.this.repository_url
}

output "database" {
  description = "MLflow's database: {host, port, name, user, secret}; the secret's ARN, never its value."
  value = {
    host   = aws_db_instance.this.address
    port   = local.port
    name   = aws_db_instance.this.db_name
    user   = aws_db_instance.this.username
    secret = one(aws_db_instance.this.master_user_secret[*].secret_arn)
  }
}

output "connect" {
  description = "Writes the cluster into your kubeconfig."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${aws_eks_cluster.this.name}"
}

output "install" {
  description = "Commands that install what runs the clusters, in this order, from the repository's root."
  value = concat(
    ["helm upgrade --install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm/ --version 1.7.0 --namespace kuberay-operator --create-namespace"],
    ["helm upgrade --install cluster-autoscaler cluster-autoscaler --repo https://kubernetes.github.io/autoscaler --namespace kube-system --set autoDiscovery.clusterName=${var.name} --set awsRegion=${var.region} --set rbac.serviceAccount.name=${local.service_accounts.autoscaler}"],
    anytrue(values(local.node_groups)[*].gpu) ? ["helm upgrade --install nvidia-device-plugin nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin --namespace kube-system"] : [],
    anytrue([for group in values(local.node_groups) : group.efa_cards > 0]) ? ["helm upgrade --install aws-efa-k8s-device-plugin aws-efa-k8s-device-plugin --repo https://aws.github.io/eks-charts --namespace kube-system"] : [],
    ["kubectl apply -k infra/kuberay/services", "kubectl apply -k infra/kuberay/overlays/${var.overlay}"],
  )
}
