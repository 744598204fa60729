"""Jobs on a cluster: check what is uploaded, submit it and follow its log."""
