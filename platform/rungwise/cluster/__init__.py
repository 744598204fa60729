"""The Ray cluster: join one, or start one on this machine."""
