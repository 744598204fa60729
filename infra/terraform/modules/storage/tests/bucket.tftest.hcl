# What the bucket is by default: versioned, encrypted by its own key, closed.
mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555" }
  }
  mock_resource "aws_s3_bucket" {
    defaults = {
      id  = "research-20260101000000000000000001"
      arn = "arn:aws:s3:::research-20260101000000000000000001"
    }
  }
}

variables {
  tags = { cluster = "research" }
}

run "nothing_is_public" {
  assert {
    condition = (
      aws_s3_bucket_public_access_block.this.block_public_acls
      && aws_s3_bucket_public_access_block.this.block_public_policy
      && aws_s3_bucket_public_access_block.this.ignore_public_acls
      && aws_s3_bucket_public_access_block.this.restrict_public_buckets
    )
    error_message = "All four kinds of public access are blocked."
  }

  assert {
    condition     = one(aws_s3_bucket_ownership_controls.this.rule).object_ownership == "BucketOwnerEnforced"
    error_message = "Access control lists are off."
  }
}

run "objects_are_encrypted_by_a_key_that_rotates" {
  assert {
    condition = (
      one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).sse_algorithm == "aws:kms"
      && one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).kms_master_key_id == aws_kms_key.this.arn
    )
    error_message = "Objects that ask for nothing are encrypted by the key."
  }

  assert {
    condition     = aws_kms_key.this.enable_key_rotation && output.kms_key_arn == aws_kms_key.this.arn
    error_message = "The key rotates, and others are given it."
  }
}

run "deletions_and_broken_uploads_end" {
  assert {
    condition     = one(aws_s3_bucket_versioning.this.versioning_configuration).status == "Enabled"
    error_message = "The bucket is versioned."
  }

  assert {
    condition = {
      for rule in aws_s3_bucket_lifecycle_configuration.this.rule : rule.id => concat(
        [for each in rule.noncurrent_version_expiration : each.noncurrent_days],
        [for each in rule.abort_incomplete_multipart_upload : each.days_after_initiation],
        [for each in rule.expiration : each.days if coalesce(each.days, 0) > 0],
        [for each in rule.filter : each.prefix if try(length(each.prefix), 0) > 0],
      )
    } == { old-versions = [30], broken-uploads = [7], journals = [30, "rungwise/journals/"] }
    error_message = "Old versions go after noncurrent_days, broken uploads after a week, journals after noncurrent_days."
  }

  assert {
    condition     = aws_s3_bucket.this.force_destroy == false
    error_message = "Destroy does not delete artifacts unless asked."
  }
}

run "the_policy_refuses_and_gives_nothing" {
  assert {
    condition     = alltrue([for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Effect == "Deny" && statement.Principal == "*"])
    error_message = "Every statement refuses, whoever asks."
  }

  assert {
    condition = { for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Sid => statement.Condition } == {
      TlsOnly   = { Bool = { "aws:SecureTransport" = "false" } }
      RecentTls = { NumericLessThan = { "s3:TlsVersion" = "1.2" } }
      EncryptedByKms = {
        Null            = { "s3:x-amz-server-side-encryption" = "false" }
        StringNotEquals = { "s3:x-amz-server-side-encryption" = "aws:kms" }
      }
      EncryptedByThisKey = {
        Null            = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = "false" }
        StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = aws_kms_key.this.arn }
      }
      NoKeyOfTheirOwn = { Null = { "s3:x-amz-server-side-encryption-customer-algorithm" = "false" } }
    }
    error_message = "Plain HTTP, old TLS and any other encryption are refused."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement :
      contains(statement.Resource, "${aws_s3_bucket.this.arn}/*")
      && (!startswith(statement.Sid, "Tls") || contains(statement.Resource, aws_s3_bucket.this.arn))
    ])
    error_message = "The refusals cover every object, and TLS the bucket too."
  }
}

run "machines_reach_objects_only_through_the_endpoint" {
  variables {
    vpc_id         = "vpc-0123456789abcdef0"
    s3_endpoint_id = "vpce-0123456789abcdef0"
  }

  assert {
    condition = [
      for statement in jsondecode(aws_s3_bucket_policy.this.policy).Statement : statement.Condition
      if statement.Sid == "MachinesOnlyThroughTheEndpoint" && statement.Effect == "Deny"
      ] == [{
        StringEquals    = { "aws:Ec2InstanceSourceVpc" = "vpc-0123456789abcdef0" }
        StringNotEquals = { "aws:SourceVpce" = "vpce-0123456789abcdef0" }
    }]
    error_message = "Credentials of a machine work through the endpoint alone; people's are not meant."
  }
}

run "the_package_is_named_by_its_digest" {
  assert {
    condition = output.package == {
      bucket = aws_s3_bucket.this.id
      key    = "packages/cf24fdb62a4c2bfc0653e918762965caa74386e0f8cb212d8e74f97f7a38339e.tar.gz"
      sha256 = "cf24fdb62a4c2bfc0653e918762965caa74386e0f8cb212d8e74f97f7a38339e"
    }
    error_message = "The package's key is its digest."
  }

  assert {
    condition     = aws_s3_object.package.server_side_encryption == "aws:kms" && aws_s3_object.package.kms_key_id == aws_kms_key.this.arn
    error_message = "The package is encrypted as all else is."
  }

  assert {
    condition     = output.artifact_uri == "s3://${aws_s3_bucket.this.id}/rungwise"
    error_message = "Artifacts have a folder of their own, beside the package."
  }
}

run "the_logs_service_may_use_the_key_for_this_cluster_alone" {
  assert {
    condition = [
      for statement in jsondecode(aws_kms_key.this.policy).Statement : statement.Condition.ArnLike["kms:EncryptionContext:aws:logs:arn"]
      if statement.Sid == "Logs"
      ] == [[
        "arn:aws:logs:us-east-1:123456789012:log-group:/rungwise/research/*",
        "arn:aws:logs:us-east-1:123456789012:log-group:/aws/rds/instance/research-*",
    ]]
    error_message = "Log groups of the cluster and of its database, no others."
  }
}

run "destroy_takes_artifacts_if_asked" {
  variables {
    force_destroy = true
  }

  assert {
    condition     = aws_s3_bucket.this.force_destroy
    error_message = "force_destroy reaches the bucket."
  }
}

run "everything_bears_the_tags_and_a_name" {
  assert {
    condition = alltrue([
      for tags in [aws_s3_bucket.this.tags, aws_kms_key.this.tags, aws_s3_object.package.tags] :
      tags.cluster == "research" && tags.Name != ""
    ])
    error_message = "Tags reach every resource, with a Name."
  }
}
