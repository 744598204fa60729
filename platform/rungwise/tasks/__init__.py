"""Downstream tasks: their labelled data, encoding, decoding and metrics."""
