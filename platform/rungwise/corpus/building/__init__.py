"""Building: ranges of the source files, each turned into tables of documents and then shards."""
