# Who may speak to whom, by group and never by address. The cluster's machines are let in on the
# server's port by the module that makes them.

resource "aws_security_group" "server" {
  name        = "${var.name}-tracking"
  description = "MLflow host of ${var.name}"
  vpc_id      = var.network.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-tracking" })
}

resource "aws_security_group" "database" {
  name        = "${var.name}-tracking-database"
  description = "Database of ${var.name}, for the MLflow host alone"
  vpc_id      = var.network.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-tracking-database" })
}

resource "aws_vpc_security_group_egress_rule" "to_database" {
  security_group_id            = aws_security_group.server.id
  description                  = "PostgreSQL"
  referenced_security_group_id = aws_security_group.database.id
  ip_protocol                  = "tcp"
  from_port                    = local.port
  to_port                      = local.port

  tags = merge(var.tags, { Name = "${var.name}-tracking-to-database" })
}

resource "aws_vpc_security_group_ingress_rule" "database" {
  security_group_id            = aws_security_group.database.id
  description                  = "PostgreSQL from the MLflow host"
  referenced_security_group_id = aws_security_group.server.id
  ip_protocol                  = "tcp"
  from_port                    = local.port
  to_port                      = local.port

  tags = merge(var.tags, { Name = "${var.name}-database-from-tracking" })
}

resource "aws_vpc_security_group_egress_rule" "to_endpoints" {
  security_group_id            = aws_security_group.server.id
  description                  = "AWS services, through the interface endpoints"
  referenced_security_group_id = var.network.endpoint_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443

  tags = merge(var.tags, { Name = "${var.name}-tracking-to-endpoints" })
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  security_group_id            = var.network.endpoint_security_group_id
  description                  = "AWS services from the MLflow host"
  referenced_security_group_id = aws_security_group.server.id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443

  tags = merge(var.tags, { Name = "${var.name}-endpoints-from-tracking" })
}

resource "aws_vpc_security_group_egress_rule" "to_s3" {
  security_group_id = aws_security_group.server.id
  description       = "S3, through the gateway endpoint"
  prefix_list_id    = var.network.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443

  tags = merge(var.tags, { Name = "${var.name}-tracking-to-s3" })
}

resource "aws_route53_record" "this" {
  zone_id = var.network.zone_id
  name    = local.host
  type    = "A"
  ttl     = 60 # seconds; a replaced host is found again within a minute
  records = [aws_instance.this.private_ip]
}
