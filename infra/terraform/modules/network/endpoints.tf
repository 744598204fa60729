# The way to AWS services without the internet.

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  vpc_endpoint_type = "Gateway" # has no price, and no address: a route and a prefix list
  service_name      = "com.amazonaws.${var.region}.s3"
  route_table_ids   = [aws_route_table.private.id]

  # Only from this account to buckets of this account: neither can a machine write to somebody
  # else's bucket, nor do somebody else's credentials work from inside. Which bucket and which
  # objects is for each machine's role to say.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "ThisAccountOnly"
      Effect    = "Allow"
      Principal = { AWS = "*" }
      Action = [
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:GetBucketLocation",
        "s3:GetObject",
        "s3:ListBucket",
        "s3:ListBucketMultipartUploads",
        "s3:ListMultipartUploadParts",
        "s3:PutObject",
      ]
      Resource = "arn:${local.partition}:s3:::*"
      Condition = {
        StringEquals = {
          "aws:PrincipalAccount" = local.account_id
          "aws:ResourceAccount"  = local.account_id
        }
      }
    }]
  })

  tags = merge(var.tags, { Name = "${var.name}-s3" })
}

resource "aws_vpc_endpoint" "interface" {
  for_each = var.interface_endpoints

  vpc_id              = aws_vpc.this.id
  vpc_endpoint_type   = "Interface"
  service_name        = "${contains(local.named_in_china, each.key) ? "cn." : ""}com.amazonaws.${var.region}.${each.key}"
  private_dns_enabled = true
  security_group_ids  = [aws_security_group.endpoints.id]
  subnet_ids = [
    for zone, subnet in aws_subnet.private : subnet.id
    if var.endpoints_in_every_zone || zone == local.first_zone
  ]

  tags = merge(var.tags, { Name = "${var.name}-${each.key}" })
}

# Empty here: each module whose machines need the endpoints lets its own group in, so that a rule
# names a group and never a block of addresses.
resource "aws_security_group" "endpoints" {
  #checkov:skip=CKV2_AWS_5:attached to the interface endpoints, which this check does not look at
  name        = "${var.name}-endpoints"
  description = "Interface endpoints of ${var.name}; modules with machines let their groups in"
  vpc_id      = aws_vpc.this.id

  tags = merge(var.tags, { Name = "${var.name}-endpoints" })
}
