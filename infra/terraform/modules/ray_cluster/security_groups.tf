# Every rule names another security group or the S3 prefix list, never an address range. The one
# exception goes out, and only where the network has a NAT gateway. DNS, time and instance metadata
# are link-local services of the VPC that security groups do not filter.
resource "aws_security_group" "cluster" {
  name        = "${var.name}-cluster"
  description = "Ray nodes of ${var.name}: all traffic among themselves"
  vpc_id      = var.network.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-cluster" })
}

# All protocols, not only TCP: EFA asks for it, in both directions.
resource "aws_vpc_security_group_ingress_rule" "itself" {
  security_group_id            = aws_security_group.cluster.id
  description                  = "Ray and EFA between nodes"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.cluster.id
  tags                         = merge(var.tags, { Name = "${var.name}-itself" })
}

resource "aws_vpc_security_group_egress_rule" "itself" {
  security_group_id            = aws_security_group.cluster.id
  description                  = "Ray and EFA between nodes"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.cluster.id
  tags                         = merge(var.tags, { Name = "${var.name}-itself" })
}

resource "aws_vpc_security_group_egress_rule" "endpoints" {
  security_group_id            = aws_security_group.cluster.id
  description                  = "AWS services over interface endpoints"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = var.network.endpoint_security_group_id
  tags                         = merge(var.tags, { Name = "${var.name}-endpoints" })
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  security_group_id            = var.network.endpoint_security_group_id
  description                  = "Ray nodes of ${var.name}"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = aws_security_group.cluster.id
  tags                         = merge(var.tags, { Name = "${var.name}-cluster" })
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  security_group_id = aws_security_group.cluster.id
  description       = "S3 over the gateway endpoint"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  prefix_list_id    = var.network.s3_prefix_list_id
  tags              = merge(var.tags, { Name = "${var.name}-s3" })
}

resource "aws_vpc_security_group_egress_rule" "tracking" {
  security_group_id            = aws_security_group.cluster.id
  description                  = "MLflow"
  ip_protocol                  = "tcp"
  from_port                    = 5000
  to_port                      = 5000
  referenced_security_group_id = var.tracking_security_group_id
  tags                         = merge(var.tags, { Name = "${var.name}-tracking" })
}

resource "aws_vpc_security_group_ingress_rule" "tracking" {
  security_group_id            = var.tracking_security_group_id
  description                  = "Ray nodes of ${var.name}"
  ip_protocol                  = "tcp"
  from_port                    = 5000
  to_port                      = 5000
  referenced_security_group_id = aws_security_group.cluster.id
  tags                         = merge(var.tags, { Name = "${var.name}-cluster" })
}

resource "aws_vpc_security_group_egress_rule" "nat" {
  count = var.network.nat ? 1 : 0

  security_group_id = aws_security_group.cluster.id
  description       = "HTTPS through the NAT gateway"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"
  tags              = merge(var.tags, { Name = "${var.name}-nat" })
}
