# A VPC whose nodes have private addresses only. They reach AWS through endpoints, and the registries
# of public images through one NAT gateway.
data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition
  arn        = "arn:${local.partition}"
  cidr       = "10.42.0.0/16"

  # What a node needs to join, and pods to have a role.
  interface_endpoints = toset(["autoscaling", "ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "secretsmanager", "sts"])

  # Sixteenths of the VPC, by place in the list, so that a zone appended moves no other subnet. No
  # zone takes the last one, which holds the public subnet.
  private_cidrs = {
    for index, zone in var.availability_zones : zone => cidrsubnet(local.cidr, 4, index)
  }
  public_cidr = cidrsubnet(local.cidr, 8, 255)
}

resource "aws_vpc" "this" {
  #checkov:skip=CKV2_AWS_11:flow logs are a cost for each owner to decide
  cidr_block           = local.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true # nodes and interface endpoints need both

  tags = { Name = var.name }
}

# What is attached to no group of its own can speak to nobody.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.name}-default-closed" }
}

resource "aws_subnet" "private" {
  for_each = local.private_cidrs

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = each.value
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-private-${each.key}" }
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.name}-private" }
}

resource "aws_route_table_association" "private" {
  for_each = aws_subnet.private

  subnet_id      = each.value.id
  route_table_id = aws_route_table.private.id
}

# The way out. One gateway serves every zone.
resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id

  tags = { Name = var.name }
}

resource "aws_subnet" "public" {
  vpc_id                  = aws_vpc.this.id
  availability_zone       = var.availability_zones[0]
  cidr_block              = local.public_cidr
  map_public_ip_on_launch = false # the gateway brings its own address

  tags = { Name = "${var.name}-nat" }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.name}-nat" }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "public" {
  subnet_id      = aws_subnet.public.id
  route_table_id = aws_route_table.public.id
}

resource "aws_eip" "nat" {
  domain = "vpc"

  tags = { Name = "${var.name}-nat" }
}

resource "aws_nat_gateway" "this" {
  subnet_id         = aws_subnet.public.id
  allocation_id     = aws_eip.nat.id
  connectivity_type = "public"

  tags = { Name = var.name }

  depends_on = [aws_internet_gateway.this] # without it the gateway fails to come up
}

resource "aws_route" "nat" {
  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this.id
}

# A route and a prefix list, free of charge. ECR and registry.k8s.io serve layers of images from buckets
# of their own, so the endpoint is open and roles say who may do what.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  vpc_endpoint_type = "Gateway"
  service_name      = "com.amazonaws.${var.region}.s3"
  route_table_ids   = [aws_route_table.private.id]

  tags = { Name = "${var.name}-s3" }
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.interface_endpoints

  vpc_id              = aws_vpc.this.id
  vpc_endpoint_type   = "Interface"
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  private_dns_enabled = true
  security_group_ids  = [aws_security_group.endpoints.id]
  subnet_ids          = [aws_subnet.private[var.availability_zones[0]].id] # serves every zone

  tags = { Name = "${var.name}-${each.key}" }
}

resource "aws_security_group" "endpoints" {
  #checkov:skip=CKV2_AWS_5:attached to the interface endpoints, which this check does not look at
  name        = "${var.name}-endpoints"
  description = "Interface endpoints of ${var.name}"
  vpc_id      = aws_vpc.this.id
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  security_group_id            = aws_security_group.endpoints.id
  description                  = "AWS services from nodes and pods"
  referenced_security_group_id = local.node_security_group
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}
