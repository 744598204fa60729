"""Forecasts of what a rung will be worth with more compute or more text, and of its price. Nothing
here trains or reads an artifact."""
