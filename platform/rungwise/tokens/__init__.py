"""The corpus as token ids: written once, mapped into memory, read by every kind of instance."""
