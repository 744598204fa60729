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
  description = "Ubuntu 24.04 for x86-64 in that region, by its id."
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
  default     = 50
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

variable "prices_per_hour" {
  description = "US dollars for an hour of one machine, for estimates. Left out: AWS's list in us-east-1, unknown elsewhere."
  type        = object({ head = optional(number), cpu = optional(number) })
  default     = {}
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
