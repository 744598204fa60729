"""Downstream tasks: formats/ reads files, data/ splits them, kinds/ has a file for each kind."""
