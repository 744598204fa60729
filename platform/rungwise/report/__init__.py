"""Self-contained HTML pages of a run (run.py) and of a ladder (ladder.py), made of sections."""
