"""Jobs on a cluster: what is checked before one is sent, sending it, following and ending it."""
