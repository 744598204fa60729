"""What a machine of a cluster does to take part in it. systemd's units call it; people do not."""
