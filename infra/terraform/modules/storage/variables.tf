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

variable "vpc_id" {
  description = "VPC of the cluster. With s3_endpoint_id, its machines' credentials can read and write objects only through that endpoint and are useless elsewhere."
  type        = string
  default     = null
}

variable "s3_endpoint_id" {
  description = "S3 gateway endpoint of the VPC (network)."
  type        = string
  default     = null

  validation {
    condition     = (var.s3_endpoint_id == null) == (var.vpc_id == null)
    error_message = "s3_endpoint_id: give it together with vpc_id, or neither."
  }
}

variable "force_destroy" {
  description = "Whether terraform destroy deletes the bucket even if it holds artifacts, with all their versions."
  type        = bool
  default     = false
}

variable "noncurrent_days" {
  description = "Days for which a replaced or deleted object can be restored, and journals are kept."
  type        = number
  default     = 30

  validation {
    condition     = var.noncurrent_days >= 1 && var.noncurrent_days <= 3650 && floor(var.noncurrent_days) == var.noncurrent_days
    error_message = "noncurrent_days: a whole number from 1 to 3650."
  }
}

variable "package_path" {
  description = "Path of the package on this machine: the .tar.gz that infra/package.sh made."
  type        = string

  validation {
    condition     = endswith(var.package_path, ".tar.gz") && fileexists(var.package_path)
    error_message = "package_path: a .tar.gz that exists; none is at ${var.package_path}."
  }
}

variable "package_sha256" {
  description = "SHA-256 of the package, as sha256sum prints it. Machines refuse any other file."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package_sha256))
    error_message = "package_sha256: 64 hexadecimal digits in lower case, as sha256sum prints them."
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
