"""Building: ranges of the source files, each turned into tables of documents and then into shards.

A range is the unit of work and of resuming. What is staged between the two passes may change with
the version of the stage; the files of the artifact are described in `document.py`.
"""
