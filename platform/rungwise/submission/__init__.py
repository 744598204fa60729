"""Jobs on a cluster: check, submit, follow and stop them."""
