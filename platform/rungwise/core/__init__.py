"""Configuration, storage, artifacts, stages and tracking: the base of every other package."""
