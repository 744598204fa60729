variable "name" {
  description = "Name of the cluster; the names of all its resources begin with it."
  type        = string
}

variable "region" {
  description = "AWS region, the same as the provider's."
  type        = string
}

variable "network" {
  description = "The module network."
  type = object({
    private_subnet_ids = map(string) # availability zone => subnet id
    s3_prefix_list_id  = string
    vpc_id             = string
  })
}

variable "storage" {
  description = "The module storage: the bucket that holds the package, and its key."
  type = object({
    bucket_arn  = string
    kms_key_arn = string
    package     = object({ bucket = string, key = string, sha256 = string })
  })
}

variable "python" {
  description = "Python command of the AMI, the same as for all machines."
  type        = string
  default     = "python3"
}

variable "ami_id" {
  description = "Id of the AMI to start from: Ubuntu 24.04, or for machines with GPUs the one with NVIDIA's drivers."
  type        = string

  validation {
    condition     = can(regex("^ami-([0-9a-f]{8}|[0-9a-f]{17})$", var.ami_id))
    error_message = "ami_id: an image pinned by its id, ami- and 8 or 17 hexadecimal digits."
  }
}

variable "instance_type" {
  description = "EC2 instance type of the machine; no GPU is needed."
  type        = string
  default     = "m7i.large"
}

variable "volume_gib" {
  description = "Root volume in GiB. Machines started from the image need at least as much."
  type        = number
  default     = 30
}

variable "tags" {
  description = "Tags for every resource."
  type        = map(string)
  default     = {}
}
