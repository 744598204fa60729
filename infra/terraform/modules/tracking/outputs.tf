output "tracking_uri" {
  description = "Address of the MLflow server inside the VPC."
  value       = "http://${local.host}:${local.listen}"
}

output "security_group_id" {
  description = "Security group of the MLflow host. A module with machines adds its own rule: its group in, port 5000."
  value       = aws_security_group.server.id
}

output "instance_id" {
  description = "The MLflow host, for Session Manager."
  value       = aws_instance.this.id
}

output "database_secret_arn" {
  description = "Secret in which RDS keeps the database's user and password."
  value       = local.secret
}
