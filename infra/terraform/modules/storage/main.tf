# One bucket for artifacts and the package, versioned, so that nothing written is lost by a mistake.
data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition
  dns_suffix = local.partition == "aws-cn" ? "amazonaws.com.cn" : "amazonaws.com"
  folder     = "rungwise" # artifacts, MLflow's files and journals
}

resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_18:access logs want a second bucket that outlives this one; whoever needs them turns on CloudTrail data events for the account
  #checkov:skip=CKV_AWS_144:artifacts can be rebuilt from their lineage; a copy in another region is a cost for each owner to decide
  #checkov:skip=CKV2_AWS_62:nothing waits for new objects; an artifact counts when its record is written
  bucket_prefix = "${var.name}-" # AWS adds the rest, so that no two accounts want the same name
  force_destroy = var.force_destroy

  tags = merge(var.tags, { Name = var.name })
}

resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = true # one call to KMS for many objects

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.this.arn
    }
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket = aws_s3_bucket.this.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# No access control lists: policies alone decide.
resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    id     = "old-versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    # What is left of a deleted object once its versions are gone.
    expiration {
      expired_object_delete_marker = true
    }
  }

  rule {
    id     = "broken-uploads"
    status = "Enabled"

    filter {}

    # A killed checkpoint upload is invisible and paid for until somebody ends it.
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  rule {
    id     = "journals"
    status = "Enabled"

    filter {
      prefix = "${local.folder}/journals/"
    }

    expiration {
      days = var.noncurrent_days
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_object" "package" {
  bucket                 = aws_s3_bucket.this.id
  key                    = "packages/${var.package_sha256}.tar.gz"
  source                 = var.package_path
  source_hash            = var.package_sha256
  content_type           = "application/gzip"
  checksum_algorithm     = "SHA256" # S3 checks what arrives
  server_side_encryption = "aws:kms"
  kms_key_id             = aws_kms_key.this.arn

  tags = merge(var.tags, { Name = "package" })

  lifecycle {
    precondition {
      condition     = filesha256(var.package_path) == var.package_sha256
      error_message = "package_sha256: ${var.package_path} has another digest, ${filesha256(var.package_path)}. Build the package again or give this digest."
    }
  }

  depends_on = [
    aws_s3_bucket_policy.this,
    aws_s3_bucket_public_access_block.this,
    aws_s3_bucket_server_side_encryption_configuration.this,
    aws_s3_bucket_versioning.this,
  ]
}
