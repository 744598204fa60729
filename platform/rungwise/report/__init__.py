"""Self-contained HTML pages of a run (run.py) and of a ladder (ladder/page.py).

Both are a `Page` of `Section`s (page.py). sections/ has the numbers, sentences, plots and CSV rows
of each, templates/ lay them out.
"""
