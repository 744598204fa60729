"""Formats of labelled files, a config block each. A new one derives from `base.FormatConfig`."""
