"""Peers that the benchmarks measure against, each as its own documents describe it."""
