"""MLflow: one run per logical run, and a spool of what the server has not received yet."""
