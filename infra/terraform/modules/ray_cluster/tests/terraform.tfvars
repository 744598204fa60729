# What every test begins with; terraform test reads this file by itself.
name   = "research"
region = "us-east-1"
network = {
  vpc_id                     = "vpc-0123456789abcdef0"
  private_subnet_ids         = { us-east-1a = "subnet-0aaaaaaaaaaaaaaaa", us-east-1b = "subnet-0bbbbbbbbbbbbbbbb" }
  zone_id                    = "Z0123456789ABCDEFGHIJ"
  zone_name                  = "research.internal"
  endpoint_security_group_id = "sg-0eeeeeeeeeeeeeeee"
  s3_prefix_list_id          = "pl-63a5400a"
  nat                        = false
}
storage = {
  bucket       = "research-artifacts"
  bucket_arn   = "arn:aws:s3:::research-artifacts"
  artifact_uri = "s3://research-artifacts/rungwise"
  kms_key_arn  = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  package = {
    bucket = "research-artifacts"
    key    = "packages/0000000000000000000000000000000000000000000000000000000000000000.tar.gz"
    sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
  }
}
tracking_uri               = "http://tracking.research.internal:5000"
tracking_security_group_id = "sg-0ffffffffffffffff"
tracking_instance_id       = "i-0ffffffffffffffff"

head = { instance_type = "m7i.xlarge", ami_id = "ami-0123456789abcdef0" }
worker_groups = {
  cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8 }
}
tags = { Project = "rungwise" }
