name               = "research"
region             = "us-east-1"
availability_zones = ["us-east-1a", "us-east-1b"]
overlay            = "cpu"
monthly_budget_usd = 500
alert_emails       = ["ops@example.org"]
node_groups        = { cpu = { instance_types = ["c7i.2xlarge"], maximum = 4 } }
