output "user_data" {
  description = "A shell script for cloud-init, plain text."
  value       = local.user_data

  precondition {
    condition     = length(local.user_data) < 16384
    error_message = "The user data has ${length(local.user_data)} characters; EC2 takes less than 16384. Make machine.scaling or machine.environment smaller."
  }
}
