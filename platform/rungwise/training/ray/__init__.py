"""Fitting on a cluster: Ray Train, Ray Data and Ray tasks; the rest of training/ needs none."""
