"""Clean-up of documents: characters, sentences, spans, quality, and text of tests taken out.

Each file is a rule that sees one document, or one batch, alone. Every change of a rule changes the
corpus of every recipe: raise the version of the corpus stage with it.
"""
