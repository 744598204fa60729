variable "name" {
  description = "Name of the cluster; the names of all its resources begin with it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "name: 2 to 21 lower-case letters, digits and hyphens, a letter first."
  }

  validation {
    # Of RDS, DNS, and security groups, in this order.
    condition     = !can(regex("--|-$|^sg-", var.name))
    error_message = "name: no two hyphens in a row, none at the end, and not sg- in front; AWS refuses such names of databases and security groups."
  }
}

variable "region" {
  description = "AWS region, the same as the provider's."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2,4}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region: the code of an AWS region, such as us-east-1."
  }
}

variable "cidr" {
  description = "Private IPv4 range of the VPC. Each zone gets a sixteenth of it."
  type        = string
  default     = "10.42.0.0/16"

  validation {
    condition     = can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.)", var.cidr))
    error_message = "cidr: private addresses (RFC 1918): inside 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16."
  }

  validation {
    # A zone of a /20 still holds 251 machines; AWS allows no VPC larger than a /16.
    condition     = can(regex("/(1[6-9]|20)$", var.cidr))
    error_message = "cidr: a prefix from /16 to /20, such as 10.42.0.0/16."
  }

  validation {
    condition     = try(cidrhost(var.cidr, 0) == split("/", var.cidr)[0], false)
    error_message = "cidr: the first address of the block in front of the slash, such as 10.42.0.0/16 and not 10.42.0.1/16."
  }
}

variable "availability_zones" {
  description = "Availability zones of the region; each gets one private subnet. RDS needs at least two."
  type        = list(string)

  validation {
    condition     = length(var.availability_zones) >= 2 && length(var.availability_zones) <= 6
    error_message = "availability_zones: two to six zones; a database subnet group needs two."
  }

  validation {
    condition     = length(distinct(var.availability_zones)) == length(var.availability_zones)
    error_message = "availability_zones: each zone once."
  }

  validation {
    condition = alltrue([
      for zone in var.availability_zones : startswith(zone, var.region) && can(regex("[0-9][a-z]$", zone))
      && length(zone) == length(var.region) + 1
    ])
    error_message = "availability_zones: zones of ${var.region}, such as ${var.region}a."
  }
}

variable "nat" {
  description = "Whether machines may reach the internet through a NAT gateway. They cannot be reached from it either way."
  type        = bool
  default     = false
}

variable "interface_endpoints" {
  description = <<-EOT
    AWS services that machines reach without the internet. Each is charged by the hour in each of
    its zones. A cluster needs these four:
    ssm, ssmmessages    Session Manager, the only way in.
    secretsmanager      the cluster's token and the database's password.
    autoscaling         the head reads and sets the capacity of the worker groups.
    The others are optional, and the machines' roles need rights for them that you add:
    ec2messages         Run Command of SSM agents before 3.3.40.
    kms, logs           Session Manager, where the account encrypts or records its sessions.
    ec2, monitoring     jobs that call EC2, or send their own metrics to CloudWatch.
  EOT
  type        = set(string)
  default     = ["autoscaling", "secretsmanager", "ssm", "ssmmessages"]

  validation {
    condition = length(setsubtract(var.interface_endpoints, [
      "autoscaling", "ec2", "ec2messages", "kms", "logs", "monitoring", "secretsmanager", "ssm",
      "ssmmessages",
    ])) == 0
    error_message = "interface_endpoints: only autoscaling, ec2, ec2messages, kms, logs, monitoring, secretsmanager, ssm and ssmmessages."
  }

  validation {
    condition = length(setsubtract(
      ["autoscaling", "secretsmanager", "ssm", "ssmmessages"], var.interface_endpoints
    )) == 0
    error_message = "interface_endpoints: a cluster cannot do without autoscaling, secretsmanager, ssm and ssmmessages."
  }
}

variable "endpoints_in_every_zone" {
  description = <<-EOT
    Whether the interface endpoints have an address in every zone. An address in one zone serves all
    of them at a fraction of the cost. A cluster has only one head, so it does not survive the loss of
    the head's zone in any case.
  EOT
  type        = bool
  default     = false
}

variable "flow_log_days" {
  description = "Days for which the VPC flow logs are kept."
  type        = number
  default     = 30

  validation {
    condition = contains([
      1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922,
      3288, 3653,
    ], var.flow_log_days)
    error_message = "flow_log_days: a retention that CloudWatch Logs offers, such as 7, 14, 30, 60, 90, 180 or 365."
  }
}

variable "tags" {
  description = "Tags for every resource."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.tags) : key != "Name" && !startswith(lower(key), "aws:")])
    error_message = "tags: Name is set here, and keys that begin with aws: belong to AWS."
  }
}
