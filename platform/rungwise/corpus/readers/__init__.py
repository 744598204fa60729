"""Readers: from the bytes of source files, of any format and encoding, to raw documents."""
