# What every test begins with; terraform test reads this file by itself.
name   = "research"
region = "us-east-1"
network = {
  vpc_id                     = "vpc-0123456789abcdef0"
  private_subnet_ids         = { us-east-1b = "subnet-b", us-east-1a = "subnet-a" }
  zone_id                    = "Z0123456789"
  zone_name                  = "research.internal"
  endpoint_security_group_id = "sg-0123456789abcdef0"
  s3_prefix_list_id          = "pl-63a5400a"
}
storage = {
  bucket       = "research-bucket"
  bucket_arn   = "arn:aws:s3:::research-bucket"
  artifact_uri = "s3://research-bucket/rungwise"
  kms_key_arn  = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  package = {
    bucket = "research-bucket"
    key    = "packages/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.tar.gz"
    sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
  }
}
ami_id = "ami-0123456789abcdef0"
