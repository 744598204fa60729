# The machine of which an image is made: private, installed by the script of all machines, then off.
mock_provider "aws" {
  mock_data "aws_partition" {
    defaults = { partition = "aws", dns_suffix = "amazonaws.com" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/research-image" }
  }
  mock_resource "aws_instance" {
    defaults = { id = "i-0123456789abcdef0" }
  }
}

variables {
  name   = "research"
  region = "us-east-1"
  network = {
    vpc_id             = "vpc-0123456789abcdef0"
    private_subnet_ids = { us-east-1b = "subnet-b", us-east-1a = "subnet-a" }
    s3_prefix_list_id  = "pl-63a5400a"
  }
  storage = {
    bucket_arn  = "arn:aws:s3:::research-bucket"
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
    package = {
      bucket = "research-bucket"
      key    = "packages/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.tar.gz"
      sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    }
  }
  ami_id = "ami-0123456789abcdef0"
}

# What a worker is told at its first boot.
run "worker" {
  module {
    source = "../bootstrap"
  }

  variables {
    machine = {
      role         = "worker"
      cluster      = "research"
      region       = "us-east-1"
      head_address = "head.research.internal"
      token_secret = "arn:aws:secretsmanager:us-east-1:123456789012:secret:research-token"
    }
    package = var.storage.package
  }
}

run "the_package_is_installed_as_on_every_machine" {
  assert {
    condition = (
      regex("(?s)rungwise-install <<'RUNGWISE'\n(.*?)\nRUNGWISE", aws_instance.this.user_data)
      == regex("(?s)rungwise-install <<'RUNGWISE'\n(.*?)\nRUNGWISE", run.worker.user_data)
    )
    error_message = "The script is that of a worker's first boot."
  }

  assert {
    condition     = endswith(aws_instance.this.user_data, "systemctl poweroff\n") && aws_instance.this.instance_initiated_shutdown_behavior == "stop"
    error_message = "When all has gone well the machine is off, and it stays."
  }
}

run "the_machine_is_private" {
  assert {
    condition = (
      aws_instance.this.associate_public_ip_address == false
      && aws_instance.this.subnet_id == "subnet-a"
      && aws_instance.this.metadata_options[0].http_tokens == "required"
    )
    error_message = "No public address, and IMDSv2."
  }

  assert {
    condition     = jsondecode(aws_iam_role_policy.this.policy).Statement[*].Action == ["s3:GetObject", "kms:Decrypt"]
    error_message = "It reads the package, and nothing else."
  }

  assert {
    condition     = endswith(output.make_image, "create-image --region us-east-1 --instance-id i-0123456789abcdef0 --name research-e3b0c44298fc --query ImageId --output text")
    error_message = "The command names the machine and the package."
  }
}

run "an_image_by_name_is_refused" {
  command = plan
  variables {
    ami_id = "ubuntu-24.04"
  }
  expect_failures = [var.ami_id]
}
