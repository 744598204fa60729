"""Jobs on a cluster: check one before it is sent, submit it, follow it and stop it."""
