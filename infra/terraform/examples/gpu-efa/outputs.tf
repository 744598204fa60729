output "platform" {
  description = "All outputs of the module: connect, install, artifact_uri, repository_url, database."
  value       = module.platform
}
