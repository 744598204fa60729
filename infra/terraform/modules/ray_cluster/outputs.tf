output "job_address" {
  description = "Address of Ray's job server once its port is forwarded (connect.ray); on the head it listens on loopback only."
  value       = "http://127.0.0.1:8265"
}

output "tracking_uri" {
  description = "Address of the MLflow server inside the VPC."
  value       = var.tracking_uri
}

output "artifact_uri" {
  description = "Folder below which a recipe's relative root is placed."
  value       = var.storage.artifact_uri
}

output "head_instance_id" {
  description = "Instance id of the head."
  value       = aws_instance.head.id
}

output "role_names" {
  description = "Roles of the machines, for policies of keys or buckets that must name their readers."
  value       = { head = aws_iam_role.head.name, worker = aws_iam_role.worker.name }
}

output "security_group_id" {
  description = "Security group of every Ray node."
  value       = aws_security_group.cluster.id
}

output "autoscaling_groups" {
  description = "Worker group => its autoscaling group, and the bounds that Ray's autoscaler respects."
  value = {
    for name, group in var.worker_groups : name => {
      name    = aws_autoscaling_group.worker[name].name
      minimum = group.minimum
      maximum = group.maximum
    }
  }
}

output "machines" {
  description = "Machines by kind: their least and greatest number, and the price of one in US dollars per hour, null if not given."
  value = merge(
    { head = { minimum = 1, maximum = 1, price_per_hour = var.head.price_per_hour } },
    { for name, group in var.worker_groups : name => {
      minimum = group.minimum, maximum = group.maximum, price_per_hour = group.price_per_hour
    } },
  )
}

output "token_secret_arn" {
  description = "ARN of the secret that holds the token. Terraform's state never contains its value."
  value       = aws_secretsmanager_secret.token.arn
}

output "connect" {
  description = "Commands to paste. Each port forwarding needs its own terminal; all need the AWS CLI and its Session Manager plugin."
  value = {
    ray        = "${local.forward} --target ${aws_instance.head.id} --parameters '{\"portNumber\":[\"8265\"],\"localPortNumber\":[\"8265\"]}'"
    prometheus = "${local.forward} --target ${aws_instance.head.id} --parameters '{\"portNumber\":[\"9090\"],\"localPortNumber\":[\"9090\"]}'"
    grafana    = "${local.forward} --target ${aws_instance.head.id} --parameters '{\"portNumber\":[\"3000\"],\"localPortNumber\":[\"3000\"]}'"
    mlflow     = "${local.forward} --target ${var.tracking_instance_id} --parameters '{\"portNumber\":[\"5000\"],\"localPortNumber\":[\"5000\"]}'"
    shell      = "aws ssm start-session --region ${var.region} --target ${aws_instance.head.id}"
    # The value goes from AWS into a file that only its owner reads, past the screen and the arguments.
    token  = "(umask 077 && mkdir -p ~/.ray && aws secretsmanager get-secret-value --region ${var.region} --secret-id ${aws_secretsmanager_secret.token.arn} --query SecretString --output text > ${local.token_file})"
    submit = "RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=${local.token_file} rungwise submit WORKFLOW CONFIG --address http://127.0.0.1:8265"
  }
}

locals {
  forward = "aws ssm start-session --region ${var.region} --document-name AWS-StartPortForwardingSession"
  # A file of this cluster's own: ~/.ray/auth_token may belong to a cluster on the laptop.
  token_file = "~/.ray/${var.name}.token"
}
