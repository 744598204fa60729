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

variable "network" {
  description = "The module network; the server's name is tracking.<zone_name>."
  type = object({
    endpoint_security_group_id = string
    private_subnet_ids         = map(string) # availability zone => subnet id
    s3_prefix_list_id          = string
    vpc_id                     = string
    zone_id                    = string
    zone_name                  = string
  })

  validation {
    condition     = length(var.network.private_subnet_ids) >= 2
    error_message = "network.private_subnet_ids: private subnets of two zones or more; a database subnet group needs two."
  }

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", var.network.zone_name))
    error_message = "network.zone_name: a DNS name in lower case, such as research.internal."
  }
}

variable "storage" {
  description = "The module storage: the bucket, its folder for MLflow's files, the key that encrypts what the cluster keeps, and the package that machines install."
  type = object({
    artifact_uri = string # s3://<bucket>/<folder>
    bucket       = string
    bucket_arn   = string
    kms_key_arn  = string
    package      = object({ bucket = string, key = string, sha256 = string })
  })

  validation {
    condition     = can(regex("^s3://[^/]+/[^*?]*[^*?/]$", var.storage.artifact_uri))
    error_message = "storage.artifact_uri: s3://<bucket>/<folder>, without * or ? and without a slash at the end; the host's rights end at this folder."
  }

  validation {
    condition     = startswith(var.storage.artifact_uri, "s3://${var.storage.bucket}/")
    error_message = "storage.artifact_uri: a folder of the bucket ${var.storage.bucket}."
  }

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.storage.package.sha256))
    error_message = "storage.package.sha256: 64 hexadecimal digits in lower case, as sha256sum prints them."
  }

  validation {
    condition     = can(regex("^[^/*?][^*?]*$", var.storage.package.key))
    error_message = "storage.package.key: the object's whole key, without a slash in front and without * or ?."
  }
}

variable "ami_id" {
  description = "Id of the MLflow host's Ubuntu 24.04 image."
  type        = string

  validation {
    condition     = can(regex("^ami-([0-9a-f]{8}|[0-9a-f]{17})$", var.ami_id))
    error_message = "ami_id: an image pinned by its id, ami- and 8 or 17 hexadecimal digits."
  }
}

variable "instance_type" {
  description = "EC2 instance type of the MLflow host; the server alone needs about 2 GiB of memory."
  type        = string
  default     = "t3.medium"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.instance_type))
    error_message = "instance_type: an EC2 instance type, such as t3.medium."
  }

  validation {
    condition     = !can(regex("\\.(nano|micro)$", var.instance_type))
    error_message = "instance_type: small or larger; MLflow does not start in the memory of a nano or a micro."
  }
}

variable "volume_gib" {
  description = "Root volume of the MLflow host in GiB. Its data is in the database and the bucket."
  type        = number
  default     = 30

  validation {
    condition     = var.volume_gib >= 20 && var.volume_gib <= 16384 && floor(var.volume_gib) == var.volume_gib
    error_message = "volume_gib: a whole number from 20 to 16384."
  }
}

variable "db_engine_version" {
  description = "Major version of PostgreSQL. RDS installs minor versions by itself, in the maintenance window."
  type        = string
  default     = "17"

  validation {
    condition     = can(regex("^1[5-7]$", var.db_engine_version))
    error_message = "db_engine_version: a major version alone, 15 to 17; a minor version named here would be undone by the next upgrade."
  }
}

variable "db_instance_class" {
  description = "RDS instance class."
  type        = string
  default     = "db.t4g.micro"

  validation {
    condition     = can(regex("^db\\.[a-z0-9-]+\\.[a-z0-9-]+$", var.db_instance_class))
    error_message = "db_instance_class: an RDS instance class, such as db.t4g.micro."
  }
}

variable "db_allocated_gib" {
  description = "Initial storage of the database in GiB; it grows automatically up to five times as much."
  type        = number
  default     = 20

  validation {
    condition     = var.db_allocated_gib >= 20 && var.db_allocated_gib <= 13107 && floor(var.db_allocated_gib) == var.db_allocated_gib
    error_message = "db_allocated_gib: a whole number from 20, the least that gp3 has, to 13107, a fifth of the most."
  }
}

variable "backup_days" {
  description = "Days for which backups are kept, from which the database can be restored."
  type        = number
  default     = 7

  validation {
    condition     = var.backup_days >= 1 && var.backup_days <= 35 && floor(var.backup_days) == var.backup_days
    error_message = "backup_days: a whole number from 1 to 35; 0 would turn backups off."
  }
}

variable "log_days" {
  description = "Days for which the database's log is kept."
  type        = number
  default     = 30

  validation {
    condition = contains([
      1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922,
      3288, 3653,
    ], var.log_days)
    error_message = "log_days: a retention that CloudWatch Logs offers, such as 7, 14, 30, 60, 90, 180 or 365."
  }
}

variable "deletion_protection" {
  description = <<-EOT
    Whether AWS refuses to delete the database. Once this is turned off and applied, terraform destroy
    deletes it with its backups and leaves no snapshot.
  EOT
  type        = bool
  default     = true
}

variable "multi_az" {
  description = "Whether to keep a standby database in another zone, at twice the price."
  type        = bool
  default     = false
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
