"""What the sections of a page say: rows of tables, sentences, examples; read from earlier stages.

Nothing here draws. A CSV file of the page has its rows from tables.py.
"""
