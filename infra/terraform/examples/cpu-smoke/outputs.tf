output "job_address" {
  description = "Address of Ray's job server once its port is forwarded."
  value       = module.ray_cluster.job_address
}

output "tracking_uri" {
  description = "Address of the MLflow server inside the VPC."
  value       = module.ray_cluster.tracking_uri
}

output "artifact_uri" {
  description = "Folder for artifacts."
  value       = module.ray_cluster.artifact_uri
}

output "role_names" {
  description = "Roles of the machines, for policies of keys or buckets that must name their readers."
  value       = module.ray_cluster.role_names
}

output "autoscaling_groups" {
  description = "Worker groups and their bounds."
  value       = module.ray_cluster.autoscaling_groups
}

output "machines" {
  description = "Machines by kind, how many there may be, and what one costs per hour."
  value       = module.ray_cluster.machines
}

output "connect" {
  description = "Commands to paste. terraform output -raw takes no maps; use terraform output -json connect | jq -r .ray"
  value       = module.ray_cluster.connect
}

output "make_image" {
  description = "With make_image=true: the command that makes an image with the package and prints its id."
  value       = one(module.image[*].make_image)
}
