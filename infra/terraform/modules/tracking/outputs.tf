output "tracking_uri" {
  description = "Address of the MLflow server inside the VPC."
  value       = "http://${local.host}:${local.listen}"
}

output "security_group_id" {
  description = "Security group of the MLflow host. A module with machines adds a rule that admits its own group on port 5000."
  value       = aws_security_group.server.id
}

output "instance_id" {
  description = "Instance id of the MLflow host, for Session Manager."
  value       = aws_instance.this.id
}

output "database_secret_arn" {
  description = "ARN of the secret in which RDS keeps the database's user and password."
  value       = local.secret
}
