"""The sections of a page: rows of tables, sentences, examples, read from earlier stages.

Nothing here draws. A CSV file of the page has its rows from tables.py.
"""
