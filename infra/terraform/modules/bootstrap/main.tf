# Renders the user data of a machine; it makes no resource.

locals {
  environment = try(var.machine.environment, {})
  spot        = try(var.machine.spot, false)

  unit_names = {
    head   = ["scratch", "token", "ray", "journal", "prometheus", "grafana"]
    worker = concat(["scratch", "token", "ray", "journal", "leave"], local.spot ? ["notice"] : [])
    # Only its secret's rotation needs a timer.
    tracking = ["mlflow", "journal", "password"]
  }[var.machine.role]

  services = {
    for name in concat(["install"], local.unit_names) :
    "rungwise-${name}.service" => templatefile("${path.module}/templates/${name}.service.tftpl", {
      python  = "/opt/rungwise/bin/python"
      scratch = var.scratch
    })
  }
  timers = {
    for name in local.unit_names :
    "rungwise-${name}.timer" => file("${path.module}/templates/${name}.timer")
    if name == "password"
  }
  units = merge(local.services, local.timers)

  # What a timer starts is not enabled by itself.
  enabled = [for name in keys(local.units) : name if name != "rungwise-password.service"]

  install = templatefile("${path.module}/templates/install.sh.tftpl", {
    environment = local.environment
    package     = var.package
    region      = var.machine.region
    python      = var.python
  })

  user_data = templatefile("${path.module}/templates/user_data.sh.tftpl", {
    machine = jsonencode(var.machine)
    install = local.install
    units   = local.units
    enabled = local.enabled
  })
}
