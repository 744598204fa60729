# PostgreSQL for MLflow. RDS makes the password and keeps it in Secrets Manager: it is never in
# Terraform's state. RDS also changes it, every seven days unless told otherwise.
locals {
  database = "${var.name}-mlflow"
  port     = 5432
  engine   = "17" # RDS installs minor versions by itself, in the maintenance window
}

resource "aws_db_subnet_group" "this" {
  name        = local.database
  description = "Private subnets of ${var.name}"
  subnet_ids  = values(aws_subnet.private)[*].id
}

resource "aws_db_parameter_group" "this" {
  name_prefix = "${local.database}-"
  description = "MLflow of ${var.name}: TLS only"
  family      = "postgres${local.engine}"

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }

  # A new major version wants a new family while the old one is still in use.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_db_instance" "this" {
  #checkov:skip=CKV_AWS_129:what pods ask of the database is in their own logs; one more log is a cost
  #checkov:skip=CKV2_AWS_30:as above
  #checkov:skip=CKV_AWS_157:without a standby a broken zone delays records, which are spooled and sent later
  #checkov:skip=CKV_AWS_161:MLflow opens its connections with a password, which RDS makes and changes
  #checkov:skip=CKV_AWS_118:enhanced monitoring is for tuning a busy database; this one records runs
  #checkov:skip=CKV_AWS_353:performance insights are for tuning a busy database; this one records runs
  #checkov:skip=CKV_AWS_293:deletion_protection is on by default; destroy is to leave nothing behind once it is turned off
  identifier = local.database

  engine                     = "postgres"
  engine_version             = local.engine
  auto_minor_version_upgrade = true
  instance_class             = "db.t4g.micro"
  parameter_group_name       = aws_db_parameter_group.this.name

  storage_type          = "gp3"
  allocated_storage     = 20
  max_allocated_storage = 100 # GiB; storage grows by itself up to this
  storage_encrypted     = true
  kms_key_id            = aws_kms_key.this.arn

  db_name                       = "mlflow"
  username                      = "mlflow"
  manage_master_user_password   = true
  master_user_secret_kms_key_id = aws_kms_key.this.arn

  db_subnet_group_name   = aws_db_subnet_group.this.name
  vpc_security_group_ids = [aws_security_group.database.id]
  port                   = local.port
  publicly_accessible    = false

  backup_retention_period  = 7
  delete_automated_backups = true
  copy_tags_to_snapshot    = true
  deletion_protection      = var.deletion_protection
  skip_final_snapshot      = true # deletion_protection is what stands before a deletion
}

resource "aws_security_group" "database" {
  name        = "${var.name}-database"
  description = "Database of ${var.name}, for its pods alone"
  vpc_id      = aws_vpc.this.id
}

resource "aws_vpc_security_group_ingress_rule" "database" {
  security_group_id            = aws_security_group.database.id
  description                  = "PostgreSQL from pods"
  referenced_security_group_id = local.node_security_group
  ip_protocol                  = "tcp"
  from_port                    = local.port
  to_port                      = local.port
}
