"""Readers: from the bytes of source files, of any format and encoding, to raw documents.

A new format is a source in `corpus/config.py` and a generator of `RawDocument` here, which
`building/range_builder.py` lists by kind; damage becomes a document without text. Ids say where a
document begins, so nothing here may renumber them.
"""
