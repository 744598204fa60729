"""A recipe as data: frozen blocks, YAML, dotted overrides, canonical JSON."""
