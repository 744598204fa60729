# Images of infra/Dockerfile. A tag once pushed never changes, so that a resumed run finds its own code.
resource "aws_ecr_repository" "this" {
  name                 = "${var.name}/rungwise"
  image_tag_mutability = "IMMUTABLE"
  force_delete         = var.force_destroy

  encryption_configuration {
    encryption_type = "KMS"
    kms_key         = aws_kms_key.this.arn
  }

  image_scanning_configuration {
    scan_on_push = true
  }
}
