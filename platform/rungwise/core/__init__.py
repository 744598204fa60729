"""Configuration, storage, artifacts, stages and tracking: what every other package rests on."""
