variable "name" {
  description = "Name of the cluster, in front of every name made here."
  type        = string
}

variable "region" {
  description = "AWS region, the same as the provider's."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the cluster (network)."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets: availability zone => subnet id (network.private_subnet_ids)."
  type        = map(string)
}

variable "s3_prefix_list_id" {
  description = "Prefix list of S3, reached through the gateway endpoint (network)."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the bucket of the package (storage)."
  type        = string
}

variable "kms_key_arn" {
  description = "Key of that bucket (storage)."
  type        = string
}

variable "package" {
  description = "The package that machines install, pinned by its sha256 (storage)."
  type        = object({ bucket = string, key = string, sha256 = string })
}

variable "python" {
  description = "The Python of the image, as machines are told."
  type        = string
  default     = "python3"
}

variable "ami_id" {
  description = "The image to begin with, by its id: Ubuntu 24.04, or the one with NVIDIA's drivers for machines with GPUs."
  type        = string

  validation {
    condition     = can(regex("^ami-([0-9a-f]{8}|[0-9a-f]{17})$", var.ami_id))
    error_message = "ami_id: an image pinned by its id, ami- and 8 or 17 hexadecimal digits."
  }
}

variable "instance_type" {
  description = "EC2 instance type of the machine, on which nothing needs a GPU."
  type        = string
  default     = "m7i.large"
}

variable "volume_gib" {
  description = "Root volume in GiB. Machines started from the image need at least as much."
  type        = number
  default     = 30
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
  default     = {}
}
