"""MLflow: one run per logical run, and a spool of what the server has not received yet.

Only the driver writes to it. A failure of tracking never stops a stage.
"""
