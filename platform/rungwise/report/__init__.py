"""Self-contained HTML pages of a run (page.py) and of a ladder (ladder/), with plots and tables.

sections/ works out the numbers and sentences of a page, plots/ draws them, templates/ lay them out.
"""
