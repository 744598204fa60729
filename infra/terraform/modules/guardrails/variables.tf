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

variable "monthly_budget_usd" {
  description = "Monthly budget in US dollars. alert_emails are notified at 50, 80 and 100 % of it, and when the forecast exceeds it."
  type        = number

  validation {
    condition     = var.monthly_budget_usd > 0
    error_message = "monthly_budget_usd: US dollars, more than 0."
  }
}

variable "budget_stops_head" {
  description = <<-EOT
    Whether to stop the head when the budget is spent. Workers shut down once the head has not
    answered for ray_cluster.headless_minutes. The head keeps its disk; start it again by hand. AWS
    reports costs with hours of delay.
  EOT
  type        = bool
  default     = false

  validation {
    # A group starts its minimum again, whoever leaves.
    condition     = !var.budget_stops_head || alltrue([for group in values(var.autoscaling_groups) : group.minimum == 0])
    error_message = "budget_stops_head: every group has the minimum 0, or its machines would start again without a head."
  }
}

variable "cost_tag" {
  description = <<-EOT
    Count only resources with this tag, such as {key = "cluster", value = "research"}. Activate the
    key as a cost allocation tag in the billing console first, or the budget counts nothing. null
    counts the whole account, so that no cost is missed.
  EOT
  type        = object({ key = string, value = string })
  default     = null

  validation {
    condition     = var.cost_tag == null ? true : var.cost_tag.key != "" && var.cost_tag.value != ""
    error_message = "cost_tag: a key and a value, or null for the whole account."
  }
}

variable "alert_emails" {
  description = "Addresses notified about the budget and an idle head. For the idle head, each must first confirm a mail from SNS."
  type        = set(string)

  validation {
    condition     = length(var.alert_emails) >= 1 && length(var.alert_emails) <= 10
    error_message = "alert_emails: one to ten addresses; a budget that nobody hears of bounds nothing."
  }

  validation {
    condition     = alltrue([for email in var.alert_emails : can(regex("^[^@ ]+@[^@ ]+\\.[^@ .]+$", email))])
    error_message = "alert_emails: addresses such as ops@example.org."
  }
}

variable "autoscaling_groups" {
  description = "Worker groups: name => {name of the autoscaling group, minimum, maximum} (ray_cluster.autoscaling_groups). The groups must publish GroupDesiredCapacity, or the idle alarm never fires."
  type        = map(object({ name = string, minimum = number, maximum = number }))

  validation {
    condition     = alltrue([for group in values(var.autoscaling_groups) : group.minimum >= 0 && group.minimum <= group.maximum])
    error_message = "autoscaling_groups: 0 <= minimum <= maximum in every group."
  }

  validation {
    # An alarm may read ten metrics, and one of them is the head's.
    condition     = var.idle == null || length(var.autoscaling_groups) <= 9
    error_message = "autoscaling_groups: an idle alarm can watch nine groups at most; set idle to null or have fewer groups."
  }
}

variable "head_instance_id" {
  description = "Instance id of the head (ray_cluster.head_instance_id)."
  type        = string
}

variable "off_hours" {
  description = <<-EOT
    When workers are ended and when they may start again: two cron expressions of five fields, and
    the IANA name of their time zone. null lets workers run at any hour.
  EOT
  type        = object({ stop = string, start = string, timezone = string })
  default     = null

  validation {
    # A number of minutes and of hours, so that a slip of the hand cannot mean every minute.
    condition = var.off_hours == null ? true : alltrue([
      for cron in [var.off_hours.stop, var.off_hours.start] :
      can(regex("^[0-5]?[0-9] ([01]?[0-9]|2[0-3]) [0-9*,/-]+ [0-9A-Za-z*,/-]+ [0-9A-Za-z*,/-]+$", cron))
    ])
    error_message = "off_hours: stop and start are minute, hour, day, month and weekday, such as \"0 20 * * 1-5\", minute and hour as numbers."
  }

  validation {
    condition     = var.off_hours == null ? true : var.off_hours.stop != var.off_hours.start
    error_message = "off_hours: stop and start are different times."
  }

  validation {
    condition     = var.off_hours == null ? true : can(regex("^(UTC|[A-Z][A-Za-z]+(/[A-Za-z0-9_+-]+){1,2})$", var.off_hours.timezone))
    error_message = "off_hours.timezone: an IANA name, such as Europe/Berlin or UTC."
  }
}

variable "idle" {
  description = <<-EOT
    Notify alert_emails after this many minutes without workers and with the head's CPU below
    cpu_percent; stop_head also stops the head then. The head keeps its disk; start it again by hand.
    A job that is only waiting is lost. null turns the alarm off.
  EOT
  type = object({
    minutes     = optional(number, 60)
    cpu_percent = optional(number, 10)
    stop_head   = optional(bool, false)
  })
  default = {}

  validation {
    # EC2 reports every five minutes; an alarm looks back over a day at most.
    condition     = var.idle == null ? true : var.idle.minutes >= 15 && var.idle.minutes <= 1440 && var.idle.minutes % 5 == 0
    error_message = "idle.minutes: 15 to 1440, in steps of 5."
  }

  validation {
    condition     = var.idle == null ? true : var.idle.cpu_percent > 0 && var.idle.cpu_percent < 100
    error_message = "idle.cpu_percent: more than 0 and less than 100."
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
