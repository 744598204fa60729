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
  description = "How many machines the reservation holds."
  type        = number
  default     = 2
}

variable "prices_per_hour" {
  description = "US dollars for an hour of one machine, for estimates. Left out: AWS's list in us-east-1, unknown elsewhere. h100 has what the reservation costs, and no default."
  type        = object({ head = optional(number), h100 = optional(number), data = optional(number) })
  default     = {}
}

variable "ami_id" {
  description = "Ubuntu 24.04 for x86-64 in that region, by its id."
  type        = string
}

variable "gpu_ami_id" {
  description = "Deep Learning Base GPU AMI for Ubuntu 24.04 in that region, by its id."
  type        = string
}

variable "package_path" {
  description = "The package that infra/package.sh made."
  type        = string
}

variable "package_sha256" {
  description = "Its sha256, as infra/package.sh printed it."
  type        = string
}

variable "monthly_budget_usd" {
  description = "US dollars a month, with mails on the way to it."
  type        = number
}

variable "budget_stops_head" {
  description = "Whether the head is stopped when that is spent; its workers leave half an hour later."
  type        = bool
  default     = false
}

variable "alert_emails" {
  description = "Who gets those mails."
  type        = list(string)
}

variable "disposable" {
  description = "Whether destroy may delete the database and a bucket that holds artifacts. Apply with it before a destroy."
  type        = bool
  default     = false
}

variable "data_buckets" {
  description = "Buckets of this account and region with texts to train on; {} if they lie in the bucket of artifacts."
  type        = map(object({ kms_key_arn = optional(string) }))
  default     = {}
}

variable "make_image" {
  description = "Whether there is a machine to make an image with the package of; see Images in ../../README.md."
  type        = bool
  default     = false
}
