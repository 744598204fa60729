variable "machine" {
  description = <<-EOT
    The description of the machine, with exactly the fields of rungwise.cluster.description.Machine.
    It becomes /etc/rungwise/machine.json, which everyone on the machine can read, so give secrets by ARN.
  EOT
  type        = any

  validation {
    condition     = try(contains(["head", "worker", "tracking"], var.machine.role), false)
    error_message = "machine.role must be head, worker or tracking."
  }

  validation {
    condition = try(length(setsubtract(keys(var.machine), [
      "role", "cluster", "region", "head_address", "group", "resources", "labels", "spot",
      "headless_minutes", "token_secret", "scaling", "price_per_hour", "tracking_uri", "artifact_uri", "database",
      "allowed_hosts", "environment",
    ])) == 0, false)
    error_message = "machine has a field that rungwise.cluster.description.Machine does not know."
  }

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.machine.cluster))
    error_message = "machine.cluster must be 2 to 21 lower-case letters, digits and hyphens, beginning with a letter."
  }

  validation {
    condition     = can(regex("^[a-z]{2,4}(-[a-z]+)+-[0-9]$", var.machine.region))
    error_message = "machine.region must be a region of AWS such as eu-central-1."
  }

  validation {
    condition = try(alltrue([
      for field in {
        head     = ["token_secret", "scaling"]
        worker   = ["token_secret", "head_address"]
        tracking = ["database", "artifact_uri"]
      }[var.machine.role] : lookup(var.machine, field, null) != null
    ]), false)
    error_message = "A head needs machine.token_secret and machine.scaling, a worker token_secret and head_address, a tracking machine database and artifact_uri."
  }

  validation {
    condition = alltrue([
      for secret in [try(var.machine.token_secret, null), try(var.machine.database.secret, null)] :
      secret == null || can(regex("secretsmanager", secret))
    ])
    error_message = "machine.token_secret and machine.database.secret must be ARNs of Secrets Manager, never the secret itself."
  }

  validation {
    condition = try(alltrue([
      for name, value in try(var.machine.environment, {}) :
      can(regex("^[A-Z][A-Z0-9_]*$", name)) && can(regex("^[^'\\n\\r]*$", value))
    ]), false)
    error_message = "Names in machine.environment must be upper-case letters, digits and underscores; values must hold no line break and no single quote."
  }

  validation {
    condition = try(alltrue([
      for name in keys(try(var.machine.environment, {})) :
      !can(regex("SECRET|PASSWORD|TOKEN|ACCESS_KEY|CREDENTIAL", name))
    ]), false)
    error_message = "machine.environment is readable by everyone on the machine and stands in Terraform's state: it must hold no secret."
  }
}

variable "package" {
  description = "The package made by infra/package.sh, in the bucket, pinned by its SHA-256."
  type = object({
    bucket = string
    key    = string
    sha256 = string
  })

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "package.sha256 must be the 64 hexadecimal digits that infra/package.sh prints."
  }

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$", var.package.bucket))
    error_message = "package.bucket must be the name of an S3 bucket, without s3://."
  }

  validation {
    condition     = can(regex("^[A-Za-z0-9._/-]+$", var.package.key)) && !startswith(var.package.key, "/")
    error_message = "package.key must hold letters, digits, dots, hyphens, underscores and slashes only, and begin with no slash."
  }
}

variable "python" {
  description = "Python command of the AMI; its version must be the one the package was made for."
  type        = string
  default     = "python3"

  validation {
    condition     = can(regex("^[A-Za-z0-9._/-]+$", var.python))
    error_message = "python must be a command or a path without blanks, such as python3.12."
  }
}

variable "scratch" {
  description = "Folder for Ray's temporary files and spilled objects; on the instance store if there is one."
  type        = string
  default     = "/scratch"

  # Ray puts Unix sockets below it, and the path of one holds 107 bytes.
  validation {
    condition     = can(regex("^/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.scratch)) && length(var.scratch) <= 32
    error_message = "scratch must be an absolute path of at most 32 letters, digits, hyphens, underscores and slashes."
  }

  validation {
    condition     = !can(regex("^/(bin|boot|dev|etc|lib|opt/rungwise|proc|root|run|sbin|sys|tmp|usr)(/|$)", var.scratch))
    error_message = "scratch must not lie in a folder of the system; a disk is mounted there."
  }
}
