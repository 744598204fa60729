# The rights of the two roles, read out of their policy documents.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "no_action_is_a_pattern_and_only_what_has_no_resources_takes_all_of_them" {
  assert {
    condition = alltrue(flatten([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : [
        for statement in jsondecode(document).Statement : [
          for action in statement.Action : can(regex("^[a-z0-9-]+:[A-Za-z]+$", action))
        ]
      ]
    ]))
    error_message = "An action is not written out."
  }
  assert {
    condition = alltrue(flatten([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : [
        for statement in jsondecode(document).Statement : [
          for action in statement.Action : contains([
            "autoscaling:DescribeAutoScalingGroups",
            "ssmmessages:CreateControlChannel",
            "ssmmessages:CreateDataChannel",
            "ssmmessages:OpenControlChannel",
            "ssmmessages:OpenDataChannel",
          ], action)
        ] if contains(statement.Resource, "*")
      ]
    ]))
    error_message = "An action that AWS can limit to a resource is allowed on all."
  }
  assert {
    condition = toset(flatten([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : [
        for statement in jsondecode(document).Statement : [
          for resource in statement.Resource : resource if strcontains(resource, "*") && resource != "*"
        ]
      ]
      ])) == toset([
      "arn:aws:s3:::research-artifacts/rungwise/*",
      "arn:aws:ec2:us-east-1:123456789012:instance/*",
    ])
    error_message = "A resource is a pattern, other than the objects of the artifact folder and this account's instances."
  }
}

run "credentials_work_inside_the_vpc_only" {
  assert {
    condition = toset(flatten([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : [
        for statement in jsondecode(document).Statement : statement.Sid
        if try(statement.Condition.StringEquals["aws:SourceVpc"], null) != "vpc-0123456789abcdef0"
      ]
    ])) == toset(["Key", "SessionManagerInstance", "SessionManagerChannels"])
    error_message = "A right to objects, secrets or groups works from outside the VPC."
  }
  assert {
    condition = alltrue([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : one([
        for statement in jsondecode(document).Statement : statement.Condition.StringEquals["kms:ViaService"]
        if statement.Sid == "Key"
      ]) == ["s3.us-east-1.amazonaws.com", "secretsmanager.us-east-1.amazonaws.com"]
    ])
    error_message = "The key may be used other than through S3 and Secrets Manager."
  }
}

run "no_role_launches_machines_or_passes_roles" {
  assert {
    condition = length([
      for action in flatten([
        for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] :
        jsondecode(document).Statement[*].Action
      ]) : action if can(regex("^(ec2|iam|sts|rds|route53|organizations):", action))
    ]) == 0
    error_message = "A machine may do more than its work."
  }
}

run "the_head_scales_its_own_groups_and_fills_the_token" {
  assert {
    condition = one([
      for statement in jsondecode(aws_iam_role_policy.head.policy).Statement : statement
      if statement.Sid == "ScaleGroups"
      ]) == {
      Sid       = "ScaleGroups"
      Effect    = "Allow"
      Action    = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
      Resource  = [aws_autoscaling_group.worker["cpu"].arn]
      Condition = { StringEquals = { "aws:SourceVpc" = "vpc-0123456789abcdef0" } }
    }
    error_message = "The head may scale other groups, or cannot scale its own."
  }
  assert {
    condition = one([
      for statement in jsondecode(aws_iam_role_policy.head.policy).Statement : statement.Action
      if contains(statement.Resource, aws_secretsmanager_secret.token.arn)
    ]) == ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"]
    error_message = "The head cannot fill the token's secret and read it."
  }
}

run "workers_read_the_token_and_scale_nothing" {
  assert {
    condition = one([
      for statement in jsondecode(aws_iam_role_policy.worker.policy).Statement : statement.Action
      if contains(statement.Resource, aws_secretsmanager_secret.token.arn)
    ]) == ["secretsmanager:GetSecretValue"]
    error_message = "A worker may do more with the token than read it, or cannot read it."
  }
  assert {
    condition = length([
      for action in flatten(jsondecode(aws_iam_role_policy.worker.policy).Statement[*].Action) : action
      if startswith(action, "autoscaling:")
    ]) == 0
    error_message = "A worker may scale."
  }
}

run "both_read_the_package_and_write_artifacts_only" {
  assert {
    condition = alltrue([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : {
        for statement in jsondecode(document).Statement : statement.Sid => statement.Resource
        if can(regex("s3:", jsonencode(statement.Action)))
        } == {
        Package       = ["arn:aws:s3:::research-artifacts/packages/0000000000000000000000000000000000000000000000000000000000000000.tar.gz"]
        Artifacts     = ["arn:aws:s3:::research-artifacts/rungwise/*"]
        ArtifactNames = ["arn:aws:s3:::research-artifacts"]
      }
    ])
    error_message = "A machine reaches other objects than its package and the artifact folder."
  }
  assert {
    condition = alltrue([
      for role in [aws_iam_role.head, aws_iam_role.worker] :
      jsondecode(role.assume_role_policy).Statement[0].Principal == { Service = "ec2.amazonaws.com" }
    ])
    error_message = "Others than EC2 may take a role."
  }
}

run "named_data_buckets_are_read_and_no_other" {
  variables {
    data_buckets = {
      "crawl.texts" = {}
      "our-texts"   = { kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/texts" }
    }
  }
  assert {
    condition = alltrue([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : toset(flatten([
        for statement in jsondecode(document).Statement : [
          for resource in statement.Resource : [for action in statement.Action : "${action} ${resource}"]
        ] if startswith(statement.Sid, "Data")
        ])) == toset([
        "s3:GetObject arn:aws:s3:::crawl.texts/*",
        "s3:GetObject arn:aws:s3:::our-texts/*",
        "s3:ListBucket arn:aws:s3:::crawl.texts",
        "s3:ListBucket arn:aws:s3:::our-texts",
        "kms:Decrypt arn:aws:kms:us-east-1:123456789012:key/texts",
      ])
    ])
    error_message = "The rights to data buckets are other than reading those that are named."
  }
  assert {
    condition = toset(flatten([
      for document in [aws_iam_role_policy.head.policy, aws_iam_role_policy.worker.policy] : [
        for statement in jsondecode(document).Statement : statement.Sid
        if length([for resource in statement.Resource : resource if strcontains(resource, "texts")]) > 0
      ]
    ])) == toset(["Data", "DataNames", "DataKeys"])
    error_message = "Another statement reaches a data bucket."
  }
  assert {
    condition     = output.role_names == { head = aws_iam_role.head.name, worker = aws_iam_role.worker.name }
    error_message = "The outputs do not name the roles."
  }
}

run "without_data_buckets_there_is_no_empty_statement" {
  assert {
    condition = alltrue([
      for statement in jsondecode(aws_iam_role_policy.worker.policy).Statement : length(statement.Resource) > 0 && !startswith(statement.Sid, "Data")
    ])
    error_message = "A statement names no resource."
  }
}

run "a_worker_may_leave_its_group_and_raise_none" {
  assert {
    condition = jsondecode(aws_iam_role_policy.worker_leaves.policy).Statement[*].Action == [
      ["autoscaling:TerminateInstanceInAutoScalingGroup"]
    ] && toset(jsondecode(aws_iam_role_policy.worker_leaves.policy).Statement[0].Resource) == toset([for group in aws_autoscaling_group.worker : group.arn])
    error_message = "A worker may do more with groups than leave them."
  }
}
