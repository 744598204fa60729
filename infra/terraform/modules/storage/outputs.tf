output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.id
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.this.arn
}

output "artifact_uri" {
  description = "Folder in the bucket for artifacts and MLflow's files."
  value       = "s3://${aws_s3_bucket.this.id}/${local.folder}"

  # Nobody writes before the rules stand.
  depends_on = [aws_s3_bucket_policy.this, aws_s3_bucket_server_side_encryption_configuration.this]
}

output "package" {
  description = "The package in the bucket: {bucket, key, sha256}."
  value = {
    bucket = aws_s3_bucket.this.id
    key    = aws_s3_object.package.key
    sha256 = var.package_sha256
  }
}

output "kms_key_arn" {
  description = "ARN of the cluster's KMS key, for the bucket, secrets, database, and log groups named /rungwise/<name>/..."
  value       = aws_kms_key.this.arn
}
