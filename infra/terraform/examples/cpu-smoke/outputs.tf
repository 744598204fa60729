output "job_address" {
  description = "Ray's job server, once its port is forwarded."
  value       = module.ray_cluster.job_address
}

output "tracking_uri" {
  description = "The MLflow server, inside the VPC."
  value       = module.ray_cluster.tracking_uri
}

output "artifact_uri" {
  description = "Where artifacts lie."
  value       = module.ray_cluster.artifact_uri
}

output "role_names" {
  description = "Roles of the machines, for the policy of a key or bucket that has to name who reads."
  value       = module.ray_cluster.role_names
}

output "autoscaling_groups" {
  description = "Worker groups and their bounds."
  value       = module.ray_cluster.autoscaling_groups
}

output "machines" {
  description = "Machines by kind, how many there may be, and what one costs an hour."
  value       = module.ray_cluster.machines
}

output "connect" {
  description = "Commands to paste: terraform output -raw does not take maps, so terraform output -json connect | jq -r .ray"
  value       = module.ray_cluster.connect
}

output "make_image" {
  description = "With make_image=true, the command that makes an image with the package and prints its id."
  value       = one(module.image[*].make_image)
}
