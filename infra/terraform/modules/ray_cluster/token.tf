# The cluster's token has a place here and no value: the head makes one at its first boot and puts it
# in, so it never stands in the state, in a plan or in user data.
resource "aws_secretsmanager_secret" "token" {
  #checkov:skip=CKV2_AWS_57:Ray reads the token once at start; a rotated one would lock out every running node. A new head takes the token that is there; infra/terraform/README.md says how to change it.
  name                    = "${var.name}-ray-token"
  description             = "Token of the Ray cluster ${var.name}, filled by its head"
  kms_key_id              = var.storage.kms_key_arn
  recovery_window_in_days = var.token_recovery_days
  tags                    = merge(var.tags, { Name = "${var.name}-ray-token" })
}
