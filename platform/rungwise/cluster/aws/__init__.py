"""The steps by which an EC2 machine joins a cluster, called by systemd units and not by people."""
