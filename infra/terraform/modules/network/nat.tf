# The way to the internet, out only, if it is asked for: one public subnet that holds nothing but
# the NAT gateway. One gateway serves every zone.

resource "aws_internet_gateway" "this" {
  count = var.nat ? 1 : 0

  vpc_id = aws_vpc.this.id

  tags = merge(var.tags, { Name = var.name })
}

resource "aws_subnet" "public" {
  count = var.nat ? 1 : 0

  vpc_id                  = aws_vpc.this.id
  availability_zone       = local.first_zone
  cidr_block              = local.public_cidr
  map_public_ip_on_launch = false # the gateway brings its own address

  tags = merge(var.tags, { Name = "${var.name}-nat" })
}

resource "aws_route_table" "public" {
  count = var.nat ? 1 : 0

  vpc_id = aws_vpc.this.id

  tags = merge(var.tags, { Name = "${var.name}-nat" })
}

resource "aws_route" "internet" {
  count = var.nat ? 1 : 0

  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_route_table_association" "public" {
  count = var.nat ? 1 : 0

  subnet_id      = aws_subnet.public[0].id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_eip" "nat" {
  count = var.nat ? 1 : 0

  domain = "vpc"

  tags = merge(var.tags, { Name = "${var.name}-nat" })
}

resource "aws_nat_gateway" "this" {
  count = var.nat ? 1 : 0

  subnet_id         = aws_subnet.public[0].id
  allocation_id     = aws_eip.nat[0].id
  connectivity_type = "public"

  tags = merge(var.tags, { Name = var.name })

  depends_on = [aws_internet_gateway.this] # without it the gateway fails to come up
}

resource "aws_route" "nat" {
  count = var.nat ? 1 : 0

  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[0].id
}
