variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "pretrain"
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

variable "gpu_zone" {
  description = "The zone of the capacity reservation, one of availability_zones."
  type        = string
}

variable "capacity_reservation_id" {
  description = "Reservation of p5.48xlarge machines in that zone."
  type        = string
}

variable "capacity_block" {
  description = "Whether the reservation is a Capacity Block for ML."
  type        = bool
  default     = false
}

variable "gpu_machines" {
  description = "Number of machines in the reservation."
  type        = number
  default     = 2
}

variable "prices_per_hour" {
  description = "US dollars per hour of one machine, for estimates. Default: AWS's list prices in us-east-1, unknown elsewhere. h100 is the price of the reservation and has no default."
  type        = object({ head = optional(number), h100 = optional(number), data = optional(number) })
  default     = {}
}

variable "ami_id" {
  description = "Id of an Ubuntu 24.04 image for x86-64 in that region."
  type        = string
}

variable "gpu_ami_id" {
  description = "Id of a Deep Learning Base GPU AMI for Ubuntu 24.04 in that region."
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

variable "disposable" {
  description = "Whether terraform destroy may delete the database and a bucket that holds artifacts. Apply it before you destroy."
  type        = bool
  default     = false
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
