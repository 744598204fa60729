"""One self-contained page about a run, with its plots."""
