# The bucket's policy only takes away. What it leaves, roles give.
locals {
  objects = "${aws_s3_bucket.this.arn}/*"

  refusals = [
    {
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*" # refused, not granted
      Resource  = [aws_s3_bucket.this.arn, local.objects]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    },
    {
      Sid       = "RecentTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.this.arn, local.objects]
      Condition = { NumericLessThan = { "s3:TlsVersion" = "1.2" } }
    },
    # Who asks for no encryption gets the bucket's own, which is the key. Who asks for another
    # algorithm, another key, or brings a key of their own is refused.
    {
      Sid       = "EncryptedByKms"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:PutObject"
      Resource  = [local.objects]
      Condition = {
        Null            = { "s3:x-amz-server-side-encryption" = "false" }
        StringNotEquals = { "s3:x-amz-server-side-encryption" = "aws:kms" }
      }
    },
    {
      Sid       = "EncryptedByThisKey"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:PutObject"
      Resource  = [local.objects]
      Condition = {
        Null            = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = "false" }
        StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = aws_kms_key.this.arn }
      }
    },
    {
      Sid       = "NoKeyOfTheirOwn"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:PutObject"
      Resource  = [local.objects]
      Condition = { Null = { "s3:x-amz-server-side-encryption-customer-algorithm" = "false" } }
    },
  ]

  # Credentials that were handed to a machine of this VPC, used from anywhere else. People and
  # Terraform sign with others and are not meant.
  machines_elsewhere = {
    Sid       = "MachinesOnlyThroughTheEndpoint"
    Effect    = "Deny"
    Principal = "*"
    Action    = ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    Resource  = [local.objects]
    Condition = {
      StringEquals    = { "aws:Ec2InstanceSourceVpc" = var.vpc_id }
      StringNotEquals = { "aws:SourceVpce" = var.s3_endpoint_id }
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id

  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = concat(local.refusals, [for one in [local.machines_elsewhere] : one if var.s3_endpoint_id != null])
  })

  # A policy for everybody, even one that only refuses, is looked at by the block of public access.
  depends_on = [aws_s3_bucket_public_access_block.this]
}
