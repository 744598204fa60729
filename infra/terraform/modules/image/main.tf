# A machine that installs the package, with the script of every other machine, and switches itself
# off; an image is then made of it by the command of the output make_image.
data "aws_partition" "current" {}

locals {
  install = templatefile("${path.module}/../bootstrap/templates/install.sh.tftpl", {
    environment = {}
    package     = var.storage.package
    region      = var.region
    python      = var.python
  })
}

resource "aws_iam_role" "this" {
  name        = "${var.name}-image"
  description = "The machine that an image of ${var.name} is made of"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })

  tags = merge(var.tags, { Name = "${var.name}-image" })
}

resource "aws_iam_instance_profile" "this" {
  name = "${var.name}-image"
  role = aws_iam_role.this.name

  tags = merge(var.tags, { Name = "${var.name}-image" })
}

resource "aws_iam_role_policy" "this" {
  name = "image"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Package"
        Effect    = "Allow"
        Action    = "s3:GetObject"
        Resource  = "${var.storage.bucket_arn}/${var.storage.package.key}"
        Condition = { StringEquals = { "aws:SourceVpc" = var.network.vpc_id } }
      },
      {
        Sid      = "Key"
        Effect   = "Allow"
        Action   = "kms:Decrypt"
        Resource = var.storage.kms_key_arn
        Condition = {
          StringEquals = {
            "kms:ViaService" = [
              for domain in distinct(["amazonaws.com", data.aws_partition.current.dns_suffix]) :
              "s3.${var.region}.${domain}"
            ]
          }
        }
      },
    ]
  })
}

resource "aws_security_group" "this" {
  name        = "${var.name}-image"
  description = "The machine that an image of ${var.name} is made of"
  vpc_id      = var.network.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-image" })
}

resource "aws_vpc_security_group_egress_rule" "to_s3" {
  security_group_id = aws_security_group.this.id
  description       = "S3, through the gateway endpoint"
  prefix_list_id    = var.network.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443

  tags = merge(var.tags, { Name = "${var.name}-image-to-s3" })
}

resource "aws_instance" "this" {
  #checkov:skip=CKV_AWS_126:this machine lives for minutes, until its image is made
  ami                                  = var.ami_id
  instance_type                        = var.instance_type
  subnet_id                            = var.network.private_subnet_ids[sort(keys(var.network.private_subnet_ids))[0]]
  associate_public_ip_address          = false
  vpc_security_group_ids               = [aws_security_group.this.id]
  iam_instance_profile                 = aws_iam_instance_profile.this.name
  instance_initiated_shutdown_behavior = "stop"
  ebs_optimized                        = true

  user_data                   = templatefile("${path.module}/user_data.sh.tftpl", { install = trimspace(local.install) })
  user_data_replace_on_change = true

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  # AWS's own key for EBS, with which EC2 Auto Scaling may start machines from the image.
  root_block_device {
    volume_type           = "gp3"
    volume_size           = var.volume_gib
    encrypted             = true
    delete_on_termination = true
    tags                  = merge(var.tags, { Name = "${var.name}-image" })
  }

  tags = merge(var.tags, { Name = "${var.name}-image" })

  # What the first boot needs.
  depends_on = [aws_iam_role_policy.this, aws_vpc_security_group_egress_rule.to_s3]
}
