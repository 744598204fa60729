variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "smoke"
}

variable "region" {
  description = "AWS region with the zones a and b."
  type        = string
  default     = "us-east-1"
}

variable "api_cidrs" {
  description = "Your address, from which kubectl reaches the cluster, such as [\"203.0.113.7/32\"]."
  type        = list(string)
}

variable "monthly_budget_usd" {
  description = "Monthly bill of the account at which the owners are told, in US dollars."
  type        = number
  default     = 500
}

variable "alert_emails" {
  description = "Addresses of the owners."
  type        = set(string)
}
