# What the tracking host is by default: private, encrypted, and able to do what it needs.
mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws", dns_suffix = "amazonaws.com" }
  }
  mock_resource "aws_db_instance" {
    defaults = {
      address = "research-mlflow.abcdefghijkl.us-east-1.rds.amazonaws.com"
      master_user_secret = [{
        kms_key_id    = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
        secret_arn    = "arn:aws:secretsmanager:us-east-1:123456789012:secret:rds!db-1234-AbCdEf"
        secret_status = "active"
      }]
    }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/research-tracking" }
  }
  mock_resource "aws_instance" {
    defaults = { id = "i-0123456789abcdef0", private_ip = "10.42.0.7" }
  }
}

variables {
  tags = { cluster = "research" }
}

run "the_host_is_private" {
  assert {
    condition     = aws_instance.this.associate_public_ip_address == false && aws_instance.this.subnet_id == "subnet-a"
    error_message = "No public address, in the first zone's private subnet."
  }

  assert {
    condition = (
      aws_instance.this.metadata_options[0].http_tokens == "required"
      && aws_instance.this.metadata_options[0].http_put_response_hop_limit == 1
    )
    error_message = "IMDSv2, and one hop."
  }

  assert {
    condition     = aws_instance.this.root_block_device[0].encrypted && aws_instance.this.root_block_device[0].kms_key_id == var.storage.kms_key_arn
    error_message = "The disk is encrypted by the cluster's key."
  }

  assert {
    condition     = aws_instance.this.credit_specification[0].cpu_credits == "standard"
    error_message = "A burstable host slows down instead of costing more."
  }

  assert {
    condition     = aws_instance.this.user_data_replace_on_change
    error_message = "Another package makes another host."
  }
}

run "a_host_that_does_not_burst_names_no_credits" {
  variables {
    instance_type = "m7i.large"
  }

  assert {
    condition     = length(aws_instance.this.credit_specification) == 0
    error_message = "Credits belong to burstable types."
  }
}

run "the_host_is_told_what_it_needs_and_no_secret" {
  assert {
    condition = alltrue([
      for told in [
        "tracking", "research", "us-east-1", "s3://research-bucket/rungwise",
        "research-mlflow.abcdefghijkl.us-east-1.rds.amazonaws.com",
        "arn:aws:secretsmanager:us-east-1:123456789012:secret:rds!db-1234-AbCdEf",
        "tracking.research.internal:5000", "localhost:*", "127.0.0.1:*", var.storage.package.key,
      ] : strcontains(aws_instance.this.user_data, told)
    ])
    error_message = "The user data names the database, its secret, the bucket's folder, the package and the host's own names."
  }
}

run "the_server_has_a_name" {
  assert {
    condition = (
      aws_route53_record.this.name == "tracking.research.internal" && aws_route53_record.this.type == "A"
      && aws_route53_record.this.records == toset([aws_instance.this.private_ip])
      && aws_route53_record.this.zone_id == var.network.zone_id
    )
    error_message = "tracking.<zone> is the host's private address."
  }

  assert {
    condition     = output.tracking_uri == "http://tracking.research.internal:5000" && output.instance_id == aws_instance.this.id
    error_message = "The outputs name the server and the host."
  }
}

run "the_database_is_closed_and_encrypted" {
  assert {
    condition     = !aws_db_instance.this.publicly_accessible && aws_db_instance.this.vpc_security_group_ids == toset([aws_security_group.database.id])
    error_message = "The database answers inside the VPC, behind its group."
  }

  assert {
    condition     = aws_db_instance.this.storage_encrypted && aws_db_instance.this.kms_key_id == var.storage.kms_key_arn
    error_message = "Its storage is encrypted by the cluster's key."
  }

  assert {
    condition = (
      aws_db_instance.this.manage_master_user_password
      && aws_db_instance.this.password == null && aws_db_instance.this.password_wo == null
      && aws_db_instance.this.master_user_secret_kms_key_id == var.storage.kms_key_arn
      && output.database_secret_arn == aws_db_instance.this.master_user_secret[0].secret_arn
    )
    error_message = "RDS makes the password and keeps it; no password is given."
  }

  assert {
    condition     = { for each in aws_db_parameter_group.this.parameter : each.name => each.value }["rds.force_ssl"] == "1"
    error_message = "Connections without TLS are refused."
  }

  assert {
    condition     = aws_db_parameter_group.this.family == "postgres17" && aws_db_instance.this.parameter_group_name == aws_db_parameter_group.this.name
    error_message = "The parameters are those of the major version, and in use."
  }

  assert {
    condition     = aws_db_subnet_group.this.subnet_ids == toset(["subnet-a", "subnet-b"])
    error_message = "The database lies in private subnets."
  }
}

run "the_database_is_kept" {
  assert {
    condition     = aws_db_instance.this.deletion_protection && aws_db_instance.this.backup_retention_period == 7
    error_message = "Deletion is refused and seven days can be brought back."
  }

  assert {
    condition     = aws_db_instance.this.max_allocated_storage == 100 && aws_db_instance.this.multi_az == false
    error_message = "Storage grows fivefold; a second database is not paid for unasked."
  }

  assert {
    condition = aws_db_instance.this.enabled_cloudwatch_logs_exports == toset(["postgresql", "upgrade"]) && alltrue([
      for kind, group in aws_cloudwatch_log_group.database :
      group.name == "/aws/rds/instance/research-mlflow/${kind}" && group.kms_key_id == var.storage.kms_key_arn
      && group.retention_in_days == 30
    ])
    error_message = "Its logs go to encrypted groups that end."
  }
}

run "a_database_without_protection_leaves_nothing_behind" {
  variables {
    deletion_protection = false
    multi_az            = true
    backup_days         = 14
  }

  assert {
    condition = (
      !aws_db_instance.this.deletion_protection && aws_db_instance.this.skip_final_snapshot
      && aws_db_instance.this.delete_automated_backups
    )
    error_message = "Destroy takes backups along and leaves no snapshot."
  }

  assert {
    condition     = aws_db_instance.this.multi_az && aws_db_instance.this.backup_retention_period == 14
    error_message = "The choices reach the database."
  }
}

run "groups_name_each_other" {
  assert {
    condition = alltrue([
      for rule in [
        aws_vpc_security_group_ingress_rule.database, aws_vpc_security_group_ingress_rule.endpoints,
      ] : rule.referenced_security_group_id == aws_security_group.server.id && rule.cidr_ipv4 == null && rule.cidr_ipv6 == null
    ])
    error_message = "Who is let in is a group, never an address."
  }

  assert {
    condition = (
      aws_vpc_security_group_egress_rule.to_database.referenced_security_group_id == aws_security_group.database.id
      && aws_vpc_security_group_egress_rule.to_endpoints.referenced_security_group_id == var.network.endpoint_security_group_id
      && aws_vpc_security_group_egress_rule.to_s3.prefix_list_id == var.network.s3_prefix_list_id
    )
    error_message = "The host speaks to the database, the endpoints and S3."
  }

  assert {
    condition = alltrue([
      for group in [aws_security_group.server, aws_security_group.database] :
      length(group.ingress) == 0 && length(group.egress) == 0
    ])
    error_message = "No rule hides inside a group."
  }
}

run "the_role_is_narrow" {
  assert {
    condition = alltrue(flatten([
      for statement in jsondecode(aws_iam_role_policy.this.policy).Statement : [
        for action in flatten([statement.Action]) : can(regex("^[a-z0-9]+:[A-Za-z]+$", action))
      ]
    ]))
    error_message = "Every action is named whole."
  }

  assert {
    condition = [
      for statement in jsondecode(aws_iam_role_policy.this.policy).Statement : statement.Sid
      if contains(flatten([statement.Resource]), "*")
    ] == ["SessionManagerChannels"]
    error_message = "Only the channels of Session Manager have no resource to name."
  }

  assert {
    condition = {
      for statement in jsondecode(aws_iam_role_policy.this.policy).Statement : statement.Sid => statement.Resource
      if contains(["Package", "Artifacts", "ListArtifacts", "DatabasePassword", "Key"], statement.Sid)
      } == {
      Package          = "arn:aws:s3:::research-bucket/packages/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.tar.gz"
      Artifacts        = "arn:aws:s3:::research-bucket/rungwise/*"
      ListArtifacts    = "arn:aws:s3:::research-bucket"
      DatabasePassword = "arn:aws:secretsmanager:us-east-1:123456789012:secret:rds!db-1234-AbCdEf"
      Key              = var.storage.kms_key_arn
    }
    error_message = "Its package, its folder, its password, its key."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_iam_role_policy.this.policy).Statement :
      statement.Condition.StringEquals["aws:SourceVpc"] == var.network.vpc_id
      if contains(["Package", "Artifacts", "ListArtifacts", "DatabasePassword"], statement.Sid)
    ])
    error_message = "Data is given to requests out of this VPC alone."
  }

  assert {
    condition     = jsondecode(aws_iam_role.this.assume_role_policy).Statement[0].Principal == { Service = "ec2.amazonaws.com" }
    error_message = "Machines take the role, nobody else."
  }
}

run "everything_bears_the_tags_and_a_name" {
  assert {
    condition = alltrue([
      for tags in [
        aws_instance.this.tags, aws_instance.this.root_block_device[0].tags, aws_db_instance.this.tags,
        aws_db_subnet_group.this.tags, aws_db_parameter_group.this.tags, aws_iam_role.this.tags,
        aws_iam_instance_profile.this.tags, aws_security_group.server.tags,
        aws_security_group.database.tags,
      ] : tags.cluster == "research" && tags.Name != ""
    ])
    error_message = "Tags reach every resource, with a Name."
  }
}
