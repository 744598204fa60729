# PostgreSQL for MLflow. RDS makes the password and keeps it in Secrets Manager: it is never in
# Terraform's state. RDS also changes it, every seven days unless told otherwise.
locals {
  database = "${var.name}-mlflow"
  port     = 5432
  exports  = ["postgresql", "upgrade"]
}

resource "aws_db_subnet_group" "this" {
  name        = local.database
  description = "Private subnets of ${var.name}"
  subnet_ids  = values(var.network.private_subnet_ids)

  tags = merge(var.tags, { Name = local.database })
}

resource "aws_db_parameter_group" "this" {
  name_prefix = "${local.database}-"
  description = "MLflow of ${var.name}: TLS only, slow statements logged"
  family      = "postgres${var.db_engine_version}"

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }

  parameter {
    name  = "log_connections"
    value = "1"
  }

  parameter {
    name  = "log_statement"
    value = "ddl" # what changes tables; rows, which may hold anything, are not logged
  }

  parameter {
    name  = "log_min_duration_statement"
    value = "1000" # milliseconds
  }

  tags = merge(var.tags, { Name = local.database })

  # A new major version wants a new family while the old one is still in use.
  lifecycle {
    create_before_destroy = true
  }
}

# Made before the database would make them, so that they are encrypted and end some day.
resource "aws_cloudwatch_log_group" "database" {
  for_each = toset(local.exports)
  #checkov:skip=CKV_AWS_338:how long the log is kept is log_days; a year of it is a cost that many do not want

  name              = "/aws/rds/instance/${local.database}/${each.key}"
  retention_in_days = var.log_days
  kms_key_id        = var.storage.kms_key_arn

  tags = merge(var.tags, { Name = "/aws/rds/instance/${local.database}/${each.key}" })
}

resource "aws_db_instance" "this" {
  #checkov:skip=CKV_AWS_157:multi_az is for each owner to decide; without it a broken zone delays records, which are spooled and sent later
  #checkov:skip=CKV_AWS_161:MLflow opens its connections with a password, which RDS makes and changes
  #checkov:skip=CKV_AWS_118:enhanced monitoring is for tuning a busy database; this one records runs
  #checkov:skip=CKV_AWS_353:performance insights are for tuning a busy database; this one records runs
  #checkov:skip=CKV_AWS_293:deletion_protection is on by default; destroy is to leave nothing behind once it is turned off
  identifier = local.database

  engine                     = "postgres"
  engine_version             = var.db_engine_version
  auto_minor_version_upgrade = true
  instance_class             = var.db_instance_class
  parameter_group_name       = aws_db_parameter_group.this.name

  storage_type          = "gp3"
  allocated_storage     = var.db_allocated_gib
  max_allocated_storage = 5 * var.db_allocated_gib
  storage_encrypted     = true
  kms_key_id            = var.storage.kms_key_arn

  db_name                       = "mlflow"
  username                      = "mlflow"
  manage_master_user_password   = true
  master_user_secret_kms_key_id = var.storage.kms_key_arn

  db_subnet_group_name   = aws_db_subnet_group.this.name
  vpc_security_group_ids = [aws_security_group.database.id]
  port                   = local.port
  publicly_accessible    = false
  multi_az               = var.multi_az

  backup_retention_period         = var.backup_days
  delete_automated_backups        = true
  copy_tags_to_snapshot           = true
  deletion_protection             = var.deletion_protection
  skip_final_snapshot             = true # deletion_protection is what stands before a deletion
  enabled_cloudwatch_logs_exports = local.exports

  tags = merge(var.tags, { Name = local.database })

  depends_on = [aws_cloudwatch_log_group.database]
}
