"""A recipe as a graph of stages, and the runner that builds it."""
