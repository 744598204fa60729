output "vpc_id" {
  description = "Id of the VPC."
  value       = aws_vpc.this.id
}

output "private_subnet_ids" {
  description = "Private subnets: availability zone => subnet id."
  value       = { for zone, subnet in aws_subnet.private : zone => subnet.id }

  # Who uses a subnet may rely on the routes and endpoints: a machine's first minute needs them.
  depends_on = [
    aws_route_table_association.private, aws_vpc_endpoint.s3, aws_vpc_endpoint.interface,
    aws_route.nat,
  ]
}

output "zone_id" {
  description = "Id of the private Route 53 zone."
  value       = aws_route53_zone.this.zone_id
}

output "zone_name" {
  description = "Name of that zone: <name>.internal."
  value       = aws_route53_zone.this.name
}

output "endpoint_security_group_id" {
  description = "Security group of the interface endpoints. A module with machines adds a rule that admits its own group on port 443."
  value       = aws_security_group.endpoints.id
}

output "s3_prefix_list_id" {
  description = "Prefix list of S3, for egress rules."
  value       = aws_vpc_endpoint.s3.prefix_list_id
}

output "s3_endpoint_id" {
  description = "Id of the S3 gateway endpoint, for the bucket's policy."
  value       = aws_vpc_endpoint.s3.id
}

output "nat" {
  description = "Whether machines can reach the internet."
  value       = var.nat
}
