# Off hours. A maximum of 0 ends every worker of a group and keeps new ones from starting; a desired
# capacity of 0 alone would not do, because Ray's autoscaler would raise it again within seconds. Its
# node provider reads the maximum from AWS and never asks for more: in off hours what Ray wants waits,
# and goes to AWS when the group opens. What ran loses the steps since its last checkpoint. With
# idle.stop_head an off-time that is long enough stops the head too, and jobs that wait are lost.
#
# Machines that are protected from scale-in would stay, so the groups must not protect theirs. An
# apply during off hours opens the groups again, because Terraform sets the maximum that it knows.

resource "aws_autoscaling_schedule" "stop" {
  for_each = var.off_hours == null ? {} : var.autoscaling_groups

  scheduled_action_name  = "${var.name}-off-hours-stop"
  autoscaling_group_name = each.value.name
  recurrence             = var.off_hours.stop
  time_zone              = var.off_hours.timezone
  min_size               = 0
  max_size               = 0
  desired_capacity       = 0
}

resource "aws_autoscaling_schedule" "start" {
  for_each = var.off_hours == null ? {} : var.autoscaling_groups

  scheduled_action_name  = "${var.name}-off-hours-start"
  autoscaling_group_name = each.value.name
  recurrence             = var.off_hours.start
  time_zone              = var.off_hours.timezone
  min_size               = each.value.minimum
  max_size               = each.value.maximum
  desired_capacity       = each.value.minimum # the autoscaler asks for more if there is work
}
