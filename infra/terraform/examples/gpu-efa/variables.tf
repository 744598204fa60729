variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "train"
}

variable "region" {
  description = "AWS region with the zones a and b."
  type        = string
  default     = "us-east-1"
}

variable "gpu_zone" {
  description = "The zone of the reservation, a or b."
  type        = string
}

variable "machines" {
  description = "Machines in the reservation."
  type        = number
  default     = 2
}

variable "capacity_reservation_id" {
  description = "On-demand capacity reservation or Capacity Block of p5.48xlarge; null for on-demand machines."
  type        = string
  default     = null
}

variable "capacity_block" {
  description = "Whether the reservation is a Capacity Block."
  type        = bool
  default     = false
}

variable "disposable" {
  description = "Whether terraform destroy may delete the cluster, the database, the bucket and the images."
  type        = bool
  default     = false
}

variable "api_cidrs" {
  description = "Your address, from which kubectl reaches the cluster, such as [\"203.0.113.7/32\"]."
  type        = list(string)
}

variable "monthly_budget_usd" {
  description = "Monthly bill of the account at which the owners are told, in US dollars."
  type        = number
  default     = 20000
}

variable "alert_emails" {
  description = "Addresses of the owners."
  type        = set(string)
}
