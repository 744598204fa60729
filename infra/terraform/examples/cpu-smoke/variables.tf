variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "smoke"
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"
}

variable "availability_zones" {
  description = "Two or more zones of the region."
  type        = list(string)
  default     = ["us-east-1a", "us-east-1b"]
}

variable "ami_id" {
  description = "Id of an Ubuntu 24.04 image for x86-64 in that region."
  type        = string
}

variable "package_path" {
  description = "Path of the package that infra/package.sh made."
  type        = string
}

variable "package_sha256" {
  description = "Its SHA-256, as infra/package.sh printed it."
  type        = string
}

variable "monthly_budget_usd" {
  description = "Monthly budget in US dollars; mails are sent at 50, 80 and 100 % of it, and when the forecast exceeds it."
  type        = number
  default     = 50
}

variable "budget_stops_head" {
  description = "Whether to stop the head when the budget is spent; its workers shut down half an hour later."
  type        = bool
  default     = false
}

variable "alert_emails" {
  description = "Addresses that get those mails."
  type        = list(string)
}

variable "prices_per_hour" {
  description = "US dollars per hour of one machine, for estimates. Default: AWS's list prices in us-east-1, unknown elsewhere."
  type        = object({ head = optional(number), cpu = optional(number) })
  default     = {}
}

variable "data_buckets" {
  description = "Buckets of this account and region with texts to train on; {} if they are in the bucket for artifacts."
  type        = map(object({ kms_key_arn = optional(string) }))
  default     = {}
}

variable "make_image" {
  description = "Whether to start a machine from which to make an image with the package; see Images in ../../README.md."
  type        = bool
  default     = false
}
