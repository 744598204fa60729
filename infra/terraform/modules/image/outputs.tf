output "make_image" {
  description = "Command that waits until the machine has installed the package and shut down, then makes the image and prints its id."
  value = join(" && ", [
    "aws ec2 wait instance-stopped --region ${var.region} --instance-ids ${aws_instance.this.id}",
    join(" ", [
      "aws ec2 create-image --region ${var.region} --instance-id ${aws_instance.this.id}",
      "--name ${var.name}-${substr(var.storage.package.sha256, 0, 12)} --query ImageId --output text",
    ]),
  ])
}
