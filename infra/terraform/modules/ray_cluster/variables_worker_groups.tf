# Rules that need only the groups themselves and the network's zones. What only AWS knows (whether a
# type has as many network cards, whether a reservation is open) fails at launch and shows in the
# autoscaling group's activity.
variable "worker_groups" {
  description = <<-EOT
    Kinds of machines that Ray's autoscaler may start, by name.
    instance_types: the first is preferred; each must have the cpus and gpus given here.
    minimum, maximum: number of machines. spot: spot machines only, drained on the two-minute notice.
    cpus, gpus, resources, labels: what one machine offers Ray.
    efa_cards: network cards with EFA, 0 for none. placement_group: place the machines close together.
    capacity_reservation_id: launch only into this reservation; capacity_block: whether it is a Capacity
    Block for ML. availability_zone: null uses every zone of the network.
    volume_gib: root volume. price_per_hour: US dollars for one machine, for estimates only.
  EOT
  type = map(object({
    instance_types          = list(string)
    ami_id                  = string
    minimum                 = optional(number, 0)
    maximum                 = number
    spot                    = optional(bool, false)
    cpus                    = number
    gpus                    = optional(number, 0)
    resources               = optional(map(number), {})
    labels                  = optional(map(string), {})
    efa_cards               = optional(number, 0)
    placement_group         = optional(bool, false)
    capacity_reservation_id = optional(string)
    capacity_block          = optional(bool, false)
    availability_zone       = optional(string)
    volume_gib              = optional(number, 100)
    price_per_hour          = optional(number)
  }))

  validation {
    condition     = length(var.worker_groups) > 0
    error_message = "worker_groups: at least one group; a cluster without workers has nothing to run on."
  }

  validation {
    condition = alltrue([
      for name in keys(var.worker_groups) : can(regex("^[a-z][a-z0-9-]{0,20}$", name)) && name != "head"
    ])
    error_message = "worker_groups: a group's name has 1 to 21 lower-case letters, digits and hyphens, a letter first, and is not head."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) :
      length(group.instance_types) > 0
      && length(distinct(group.instance_types)) == length(group.instance_types)
      && alltrue([for type in group.instance_types : can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", type))])
    ])
    error_message = "instance_types: one or more different EC2 instance types, such as [\"c7i.2xlarge\"]."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : can(regex("^ami-([0-9a-f]{8}|[0-9a-f]{17})$", group.ami_id))
    ])
    error_message = "ami_id: an image pinned by its id, ami- and 8 or 17 hexadecimal digits."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) :
      group.minimum >= 0 && group.maximum >= 1 && group.minimum <= group.maximum
      && floor(group.minimum) == group.minimum && floor(group.maximum) == group.maximum
    ])
    error_message = "minimum and maximum: whole numbers, 0 <= minimum <= maximum, and maximum at least 1."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : group.cpus >= 1 && floor(group.cpus) == group.cpus
    ])
    error_message = "cpus: a whole number, 1 or more; Ray places no task on a machine without."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : group.gpus >= 0 && floor(group.gpus) == group.gpus
    ])
    error_message = "gpus: a whole number, 0 or more."
  }

  validation {
    condition = alltrue(flatten([
      for group in values(var.worker_groups) : [
        for name, amount in group.resources :
        can(regex("^[A-Za-z][A-Za-z0-9_.:-]*$", name)) && amount >= 1 && floor(amount) == amount
        && !contains(["cpu", "gpu", "memory", "object_store_memory"], lower(name))
      ]
    ]))
    error_message = "resources: names of your own with whole numbers, 1 or more, as Ray's autoscaler takes no fractions; CPU and GPU are the keys cpus and gpus, and Ray counts memory itself."
  }

  validation {
    # Ray's own syntax (ray/_private/label_utils.py); what it refuses would keep a node from joining.
    condition = alltrue(flatten([
      for group in values(var.worker_groups) : [
        for key, value in group.labels :
        can(regex("^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$", key))
        && can(regex("^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$", value))
        && !startswith(key, "ray.io/")
      ]
    ]))
    error_message = "labels: keys and values of up to 63 letters, digits, - _ . with a letter or digit at both ends; a key may have a DNS name and a slash in front, but not ray.io/, which Ray sets."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) :
      group.efa_cards >= 0 && group.efa_cards <= 32 && floor(group.efa_cards) == group.efa_cards
    ])
    error_message = "efa_cards: a whole number from 0 to 32 (p5.48xlarge has 32, p4d.24xlarge 4)."
  }

  validation {
    condition     = alltrue([for group in values(var.worker_groups) : group.efa_cards == 0 || !group.spot])
    error_message = "efa_cards: a group with EFA cannot be spot; one reclaimed machine ends the step of all of them."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : group.efa_cards == 0 || length(group.instance_types) == 1
    ])
    error_message = "efa_cards: a group with EFA has exactly one instance type; the layout of network cards belongs to the type."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : group.efa_cards == 0 || group.availability_zone != null
    ])
    error_message = "efa_cards: a group with EFA names its availability_zone; EFA does not leave a subnet."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : !group.placement_group || group.availability_zone != null
    ])
    error_message = "placement_group: such a group names its availability_zone; a cluster placement group lies in one."
  }

  validation {
    condition     = alltrue([for group in values(var.worker_groups) : !group.placement_group || !group.spot])
    error_message = "placement_group: such a group cannot be spot; few pools are left beside each other, and each is reclaimed soon."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) :
      group.capacity_reservation_id == null ? true : can(regex("^cr-[0-9a-f]{8,17}$", group.capacity_reservation_id))
    ])
    error_message = "capacity_reservation_id: cr- and 8 to 17 hexadecimal digits, or null."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : group.capacity_reservation_id == null || !group.spot
    ])
    error_message = "capacity_reservation_id: a group in a reservation cannot be spot; a reservation holds on-demand machines."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) :
      group.capacity_reservation_id == null || (group.availability_zone != null && length(group.instance_types) == 1)
    ])
    error_message = "capacity_reservation_id: such a group names its availability_zone and exactly one instance type, those of the reservation."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : !group.capacity_block || group.capacity_reservation_id != null
    ])
    error_message = "capacity_block: a Capacity Block is named by its capacity_reservation_id."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) :
      group.availability_zone == null ? true : contains(keys(var.network.private_subnet_ids), group.availability_zone)
    ])
    error_message = "availability_zone: one of the network's zones (${join(", ", keys(var.network.private_subnet_ids))}) or null for all of them."
  }

  validation {
    # A pool of spot machines is one type in one zone. A group with a single pool waits for ever when
    # that pool is dry, and capacity-optimized has nothing to choose from.
    condition = alltrue([
      for group in values(var.worker_groups) :
      !group.spot || length(group.instance_types) * (group.availability_zone == null ? length(var.network.private_subnet_ids) : 1) >= 2
    ])
    error_message = "spot: name two or more instance_types, or leave availability_zone null; a single pool of spot machines runs dry."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) :
      group.volume_gib >= 30 && group.volume_gib <= 16384 && floor(group.volume_gib) == group.volume_gib
    ])
    error_message = "volume_gib: a whole number from 30 to 16384."
  }

  validation {
    condition = alltrue([
      for group in values(var.worker_groups) : group.price_per_hour == null ? true : group.price_per_hour >= 0
    ])
    error_message = "price_per_hour: US dollars for one machine, 0 or more, or null if unknown."
  }
}
