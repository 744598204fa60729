variable "name" {
  description = "Name of the cluster; the names of all its resources begin with it. Unique within the account."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "name: 2 to 21 lower-case letters, digits and hyphens, a letter first."
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
  description = "The module network; the head's name is head.<zone_name>."
  type = object({
    endpoint_security_group_id = string
    nat                        = bool        # machines may then connect to port 443 anywhere
    private_subnet_ids         = map(string) # availability zone => subnet id
    s3_prefix_list_id          = string
    vpc_id                     = string
    zone_id                    = string
    zone_name                  = string
  })

  validation {
    condition     = length(var.network.private_subnet_ids) > 0
    error_message = "network.private_subnet_ids: at least one private subnet, as {availability zone = subnet id}."
  }

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", var.network.zone_name))
    error_message = "network.zone_name: a DNS name in lower case, such as research.internal."
  }
}

variable "storage" {
  description = "The module storage: the bucket, its folder for artifacts, the key that encrypts what the cluster keeps, and the package that machines install."
  type = object({
    artifact_uri = string # s3://<bucket>/<folder>
    bucket       = string
    bucket_arn   = string
    kms_key_arn  = string
    package      = object({ bucket = string, key = string, sha256 = string })
  })

  validation {
    condition     = can(regex("^s3://[^/]+/[^*?]*[^*?/]$", var.storage.artifact_uri))
    error_message = "storage.artifact_uri: s3://<bucket>/<folder>, without * or ? and without a slash at the end; the machines' rights end at this folder."
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

variable "data_buckets" {
  description = "Buckets of this account and region with texts to train on, by name, each with the KMS key that encrypts it (null for S3's own encryption). Head and workers may only list and read them."
  type        = map(object({ kms_key_arn = optional(string) }))
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.data_buckets) : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", name)) && name != var.storage.bucket])
    error_message = "data_buckets: names of buckets, without s3:// and without a folder, other than the bucket of artifacts."
  }
}

variable "tracking_uri" {
  description = "Address of the MLflow server inside the VPC (tracking)."
  type        = string

  validation {
    condition     = can(regex("^https?://[^/@]+$", var.tracking_uri))
    error_message = "tracking_uri: http://<host>:<port>, without a path and without a user or password."
  }
}

variable "tracking_security_group_id" {
  description = "Security group of the MLflow host (tracking); it will admit the cluster on MLflow's port."
  type        = string
}

variable "tracking_instance_id" {
  description = "Instance id of the MLflow host (tracking), for the command that forwards its port."
  type        = string
}

variable "head" {
  description = <<-EOT
    The head: Ray's GCS, dashboard, job server and autoscaler, Prometheus, and Grafana if the image has it.
    ami_id: id of an Ubuntu 24.04 image. cpus: CPUs that it offers to tasks; 0 keeps tasks off it.
    availability_zone: null for the first. price_per_hour: US dollars, for estimates only.
  EOT
  type = object({
    instance_type     = string
    ami_id            = string
    volume_gib        = optional(number, 100)
    cpus              = optional(number, 0)
    availability_zone = optional(string)
    price_per_hour    = optional(number)
  })

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.head.instance_type))
    error_message = "head.instance_type: an EC2 instance type, such as m7i.xlarge."
  }

  validation {
    condition     = can(regex("^ami-([0-9a-f]{8}|[0-9a-f]{17})$", var.head.ami_id))
    error_message = "head.ami_id: an image pinned by its id, ami- and 8 or 17 hexadecimal digits."
  }

  validation {
    condition     = var.head.volume_gib >= 30 && var.head.volume_gib <= 16384 && floor(var.head.volume_gib) == var.head.volume_gib
    error_message = "head.volume_gib: a whole number from 30 to 16384."
  }

  validation {
    condition     = var.head.cpus >= 0 && floor(var.head.cpus) == var.head.cpus
    error_message = "head.cpus: a whole number, 0 or more."
  }

  validation {
    condition     = var.head.availability_zone == null ? true : contains(keys(var.network.private_subnet_ids), var.head.availability_zone)
    error_message = "head.availability_zone: one of the network's zones (${join(", ", keys(var.network.private_subnet_ids))}) or null."
  }

  validation {
    condition     = var.head.price_per_hour == null ? true : var.head.price_per_hour >= 0
    error_message = "head.price_per_hour: US dollars, 0 or more, or null if unknown."
  }
}

variable "idle_timeout_minutes" {
  description = "Minutes after which Ray's autoscaler ends an idle machine."
  type        = number
  default     = 10

  validation {
    condition     = var.idle_timeout_minutes >= 1 && var.idle_timeout_minutes <= 1440
    error_message = "idle_timeout_minutes: from 1 to 1440; less than a minute ends machines between two steps of a job."
  }
}

variable "headless_minutes" {
  description = "Minutes without an answer from the head after which a worker leaves its group and shuts down."
  type        = number
  default     = 30

  validation {
    condition     = var.headless_minutes >= 10 && var.headless_minutes <= 1440
    error_message = "headless_minutes: from 10 to 1440; a head that is replaced needs some minutes to answer."
  }
}

variable "token_recovery_days" {
  description = "Days for which AWS keeps the token's secret after terraform destroy; 0 deletes it at once."
  type        = number
  default     = 0

  validation {
    condition     = var.token_recovery_days == 0 || (var.token_recovery_days >= 7 && var.token_recovery_days <= 30)
    error_message = "token_recovery_days: 0, or 7 to 30, which Secrets Manager allows."
  }
}

variable "tags" {
  description = "Tags for every resource and machine."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.tags) : key != "Name" && !startswith(lower(key), "aws:")])
    error_message = "tags: Name is set here, and keys that begin with aws: belong to AWS."
  }
}
