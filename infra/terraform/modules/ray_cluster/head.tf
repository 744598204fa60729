locals {
  head_zone = coalesce(var.head.availability_zone, sort(keys(var.network.private_subnet_ids))[0])
}

resource "aws_instance" "head" {
  ami                         = var.head.ami_id
  instance_type               = var.head.instance_type
  subnet_id                   = var.network.private_subnet_ids[local.head_zone]
  vpc_security_group_ids      = [aws_security_group.cluster.id]
  associate_public_ip_address = false
  iam_instance_profile        = aws_iam_instance_profile.head.name
  ebs_optimized               = true
  monitoring                  = true
  user_data                   = module.head_bootstrap.user_data
  user_data_replace_on_change = true
  tags                        = merge(var.tags, { Name = "${var.name}-head" })

  maintenance_options {
    auto_recovery = "default"
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  root_block_device {
    volume_type           = "gp3"
    volume_size           = var.head.volume_gib
    encrypted             = true
    delete_on_termination = true
    tags                  = merge(var.tags, { Name = "${var.name}-head" })
  }

  # First boot needs the rights and the ways out. The policy names the autoscaling groups, so on
  # destroy the head, which could start machines, goes before them.
  depends_on = [
    aws_iam_role_policy.head,
    aws_vpc_security_group_egress_rule.endpoints,
    aws_vpc_security_group_egress_rule.s3,
    aws_vpc_security_group_egress_rule.tracking,
    aws_vpc_security_group_egress_rule.nat,
    aws_vpc_security_group_ingress_rule.endpoints,
    aws_vpc_security_group_ingress_rule.tracking,
  ]
}

resource "aws_route53_record" "head" {
  zone_id = var.network.zone_id
  name    = local.head_host
  type    = "A"
  ttl     = 30 # a replaced head has a new address, which workers should find soon
  records = [aws_instance.head.private_ip]
}
