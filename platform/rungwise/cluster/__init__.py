"""The Ray cluster: joining one, or starting one on this machine."""
