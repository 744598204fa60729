"""Commands on the jobs of a Ray cluster."""
