# The MLflow server: one machine without state, in front of PostgreSQL and the bucket.
locals {
  host   = "tracking.${var.network.zone_name}"
  listen = 5000
  secret = one(aws_db_instance.this.master_user_secret[*].secret_arn)

  zone = sort(keys(var.network.private_subnet_ids))[0]
}

module "bootstrap" {
  source = "../bootstrap"

  package = var.storage.package
  machine = {
    role         = "tracking"
    cluster      = var.name
    region       = var.region
    artifact_uri = var.storage.artifact_uri
    database = {
      host   = aws_db_instance.this.address
      port   = local.port
      name   = aws_db_instance.this.db_name
      secret = local.secret
    }
    # Names that a browser or a client may give in its Host header: the name inside the VPC, and
    # this machine's own when the port is forwarded, to whatever port.
    allowed_hosts = ["${local.host}:${local.listen}", "localhost:*", "127.0.0.1:*"]
  }
}

resource "aws_instance" "this" {
  #checkov:skip=CKV_AWS_126:five-minute metrics are enough for a server that records runs; detailed ones have a price
  ami                         = var.ami_id
  instance_type               = var.instance_type
  subnet_id                   = var.network.private_subnet_ids[local.zone]
  associate_public_ip_address = false
  vpc_security_group_ids      = [aws_security_group.server.id]
  iam_instance_profile        = aws_iam_instance_profile.this.name
  ebs_optimized               = true

  user_data                   = module.bootstrap.user_data
  user_data_replace_on_change = true # a machine is made once, from what is written here

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # not from a container
  }

  root_block_device {
    volume_type           = "gp3"
    volume_size           = var.volume_gib
    encrypted             = true
    kms_key_id            = var.storage.kms_key_arn
    delete_on_termination = true
    tags                  = merge(var.tags, { Name = "${var.name}-tracking" })
  }

  # Slower when the credits are spent, and not dearer.
  dynamic "credit_specification" {
    for_each = startswith(var.instance_type, "t") ? ["standard"] : []

    content {
      cpu_credits = credit_specification.value
    }
  }

  tags = merge(var.tags, { Name = "${var.name}-tracking" })

  # What the first boot needs.
  depends_on = [
    aws_iam_role_policy.this,
    aws_vpc_security_group_egress_rule.to_database,
    aws_vpc_security_group_egress_rule.to_endpoints,
    aws_vpc_security_group_egress_rule.to_s3,
    aws_vpc_security_group_ingress_rule.database,
    aws_vpc_security_group_ingress_rule.endpoints,
  ]
}
