"""The corpus: sources and readers, clean-up, segmentation, deduplication and splits."""
