# Who may speak to whom: the group that EKS makes is the only one that is let in.
mock_provider "aws" {
  mock_resource "aws_eks_cluster" {
    defaults = { vpc_config = { cluster_security_group_id = "sg-0123456789abcdef0" } }
  }
}

run "pods_alone_reach_the_database_and_the_endpoints" {
  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.database.referenced_security_group_id == "sg-0123456789abcdef0"
      && aws_vpc_security_group_ingress_rule.endpoints.referenced_security_group_id == "sg-0123456789abcdef0"
    )
    error_message = "Both rules name the cluster's group."
  }

  assert {
    condition     = aws_launch_template.node["cpu"].vpc_security_group_ids == toset(["sg-0123456789abcdef0"])
    error_message = "Nodes are in the cluster's group."
  }
}
