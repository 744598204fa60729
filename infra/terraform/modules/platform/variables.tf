variable "name" {
  description = "Name of the cluster; the names of all its resources begin with it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "name: 2 to 21 lower-case letters, digits and hyphens, a letter first."
  }

  validation {
    # Of RDS, and of security groups.
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

variable "availability_zones" {
  description = "Availability zones of the region; each gets one private subnet. EKS and RDS need two."
  type        = list(string)

  validation {
    condition     = length(var.availability_zones) >= 2 && length(var.availability_zones) <= 6
    error_message = "availability_zones: two to six zones; EKS and a database subnet group need two."
  }

  validation {
    condition     = length(distinct(var.availability_zones)) == length(var.availability_zones)
    error_message = "availability_zones: each zone once."
  }

  validation {
    condition     = alltrue([for zone in var.availability_zones : can(regex("^${var.region}[a-z]$", zone))])
    error_message = "availability_zones: zones of ${var.region}, such as ${var.region}a."
  }
}

variable "kubernetes_version" {
  description = "Minor version of Kubernetes that EKS offers in standard support."
  type        = string
  default     = "1.35"

  validation {
    condition     = can(regex("^1\\.(3[3-9]|[4-9][0-9])$", var.kubernetes_version))
    error_message = "kubernetes_version: a minor version from 1.33, such as 1.35."
  }
}

variable "api_cidrs" {
  description = "Addresses from which the Kubernetes API can be reached over the internet, such as [\"203.0.113.7/32\"]. None by default: then only from inside the VPC."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.api_cidrs : can(cidrnetmask(cidr)) && can(regex("/(1[6-9]|2[0-9]|3[0-2])$", cidr))])
    error_message = "api_cidrs: IPv4 blocks of your network, /16 or smaller; the API is not for everybody."
  }
}

variable "namespace" {
  description = "Namespace of the Ray clusters and MLflow; pod identity is bound to it."
  type        = string
  default     = "default"

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.namespace))
    error_message = "namespace: a name of Kubernetes: up to 63 lower-case letters, digits and hyphens, no hyphen at the ends."
  }
}

variable "overlay" {
  description = "Overlay of infra/kuberay/overlays that the output install applies."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", var.overlay))
    error_message = "overlay: the name of a folder in infra/kuberay/overlays, such as cpu."
  }
}

variable "system_instance_type" {
  description = "EC2 instance type of the two nodes for the operator, the head and MLflow."
  type        = string
  default     = "m7i.xlarge"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.system_instance_type))
    error_message = "system_instance_type: an EC2 instance type, such as m7i.xlarge."
  }
}

variable "node_groups" {
  description = <<-EOT
    Groups of nodes for workers, by name:
    instance_types           the first is preferred; all must have the same CPUs and GPUs
    minimum, maximum         number of nodes
    spot                     spot nodes only, tainted rungwise/spot=true
    gpu                      NVIDIA's image, tainted nvidia.com/gpu=present
    efa_cards                network cards with EFA: 32 on p5.48xlarge, 4 on p4d.24xlarge
    placement_group          places the nodes close together
    capacity_reservation_id  starts nodes only in this reservation; with capacity_block, a Capacity Block
    availability_zone        null for all zones
    volume_gib               root volume
    Every node has the label rungwise/group=<name>.
  EOT
  type = map(object({
    instance_types          = list(string)
    minimum                 = optional(number, 0)
    maximum                 = number
    spot                    = optional(bool, false)
    gpu                     = optional(bool, false)
    efa_cards               = optional(number, 0)
    placement_group         = optional(bool, false)
    capacity_reservation_id = optional(string)
    capacity_block          = optional(bool, false)
    availability_zone       = optional(string)
    volume_gib              = optional(number, 100)
  }))

  validation {
    condition = length(var.node_groups) > 0 && alltrue([
      for name in keys(var.node_groups) : can(regex("^[a-z][a-z0-9-]{0,20}$", name)) && name != "system"
    ])
    error_message = "node_groups: at least one group; a name has 1 to 21 lower-case letters, digits and hyphens, a letter first, and is not system."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      length(group.instance_types) > 0
      && length(distinct(group.instance_types)) == length(group.instance_types)
      && alltrue([for type in group.instance_types : can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", type))])
    ])
    error_message = "instance_types: one or more different EC2 instance types, such as [\"c7i.2xlarge\"]."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      group.minimum >= 0 && group.maximum >= 1 && group.minimum <= group.maximum
      && floor(group.minimum) == group.minimum && floor(group.maximum) == group.maximum
    ])
    error_message = "minimum and maximum: whole numbers, 0 <= minimum <= maximum, and maximum at least 1."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      group.efa_cards >= 0 && group.efa_cards <= 32 && floor(group.efa_cards) == group.efa_cards
    ])
    error_message = "efa_cards: a whole number from 0 to 32 (p5.48xlarge has 32, p4d.24xlarge 4)."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      !group.spot || (group.efa_cards == 0 && !group.placement_group && group.capacity_reservation_id == null)
    ])
    error_message = "spot: not with efa_cards, placement_group or capacity_reservation_id; one reclaimed node ends the step of all, and a reservation holds on-demand nodes."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      (group.efa_cards == 0 && group.capacity_reservation_id == null) || length(group.instance_types) == 1
    ])
    error_message = "instance_types: a group with efa_cards or capacity_reservation_id has exactly one; the layout of network cards, and a reservation, belong to the type."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      (group.efa_cards == 0 && !group.placement_group && group.capacity_reservation_id == null) || group.availability_zone != null
    ])
    error_message = "availability_zone: a group with efa_cards, placement_group or capacity_reservation_id names its zone; none of them leaves it."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      group.availability_zone == null ? true : contains(var.availability_zones, group.availability_zone)
    ])
    error_message = "availability_zone: one of availability_zones, or null for all of them."
  }

  validation {
    condition = alltrue([
      for group in values(var.node_groups) :
      group.capacity_reservation_id == null ? !group.capacity_block : can(regex("^cr-[0-9a-f]{8,17}$", group.capacity_reservation_id))
    ])
    error_message = "capacity_reservation_id: cr- and 8 to 17 hexadecimal digits, or null; a capacity_block is named by it."
  }

  validation {
    # A pool of spot nodes is one type in one zone.
    condition = alltrue([
      for group in values(var.node_groups) :
      !group.spot || length(group.instance_types) * (group.availability_zone == null ? length(var.availability_zones) : 1) >= 2
    ])
    error_message = "spot: name two or more instance_types, or leave availability_zone null; a single pool of spot nodes runs dry."
  }
}

variable "data_buckets" {
  description = "Buckets of this account that the pods of Ray may read, such as those of a corpus; the account's default encryption or SSE-S3."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for bucket in var.data_buckets : can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", bucket))])
    error_message = "data_buckets: names of buckets, without s3:// and without a folder."
  }
}

variable "deletion_protection" {
  description = "Whether AWS refuses to delete the cluster and the database. Once this is turned off and applied, terraform destroy deletes them; of the database it leaves no snapshot."
  type        = bool
  default     = true
}

variable "force_destroy" {
  description = "Whether terraform destroy deletes the bucket and the repository even if they hold objects and images."
  type        = bool
  default     = false
}

variable "monthly_budget_usd" {
  description = "Monthly budget in US dollars. alert_emails are notified at 50, 80 and 100 % of it, and when the forecast exceeds it."
  type        = number

  validation {
    condition     = var.monthly_budget_usd > 0
    error_message = "monthly_budget_usd: US dollars, more than 0."
  }
}

variable "alert_emails" {
  description = "Addresses that the budget writes to."
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

variable "tags" {
  description = "Tags of the machines; other resources have the provider's default_tags."
  type        = map(string)
  default     = {}
}
