# A VPC that machines leave only for AWS services, and that nobody enters. Session Manager needs no
# open port, so there is no ingress from any address block anywhere.
data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition
  # China's names of some endpoints, and of the principal of logs, are its own.
  china          = local.partition == "aws-cn"
  named_in_china = local.china ? ["autoscaling", "ec2", "monitoring"] : []

  # Sixteenths of the VPC. Numbered by place, so that a zone appended moves no other subnet; the last
  # sixteenth is never a zone's and holds the public subnet.
  private_cidrs = {
    for index, zone in var.availability_zones : zone => cidrsubnet(var.cidr, 4, index)
  }
  public_cidr = cidrsubnet(var.cidr, 8, 255)
  first_zone  = var.availability_zones[0]
}

resource "aws_vpc" "this" {
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true # interface endpoints and the private zone need both

  tags = merge(var.tags, { Name = var.name })
}

resource "aws_subnet" "private" {
  for_each = local.private_cidrs

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = each.value
  map_public_ip_on_launch = false

  tags = merge(var.tags, { Name = "${var.name}-private-${each.key}" })
}

# One table for all zones: their ways out are the same.
resource "aws_route_table" "private" {
  vpc_id = aws_vpc.this.id

  tags = merge(var.tags, { Name = "${var.name}-private" })
}

resource "aws_route_table_association" "private" {
  for_each = aws_subnet.private

  subnet_id      = each.value.id
  route_table_id = aws_route_table.private.id
}

# What is attached to no group of its own can speak to nobody.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id

  tags = merge(var.tags, { Name = "${var.name}-default-closed" })
}

resource "aws_route53_zone" "this" {
  #checkov:skip=CKV2_AWS_38:DNSSEC signs public zones only; this one answers inside the VPC
  #checkov:skip=CKV2_AWS_39:query logging of hosted zones exists for public zones only
  name          = "${var.name}.internal"
  comment       = "Names of the head and the tracking host of ${var.name}"
  force_destroy = false

  vpc {
    vpc_id     = aws_vpc.this.id
    vpc_region = var.region
  }

  tags = merge(var.tags, { Name = "${var.name}.internal" })
}
