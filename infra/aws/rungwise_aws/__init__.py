"""The steps by which an EC2 machine joins a cluster; systemd units call them, people do not."""
