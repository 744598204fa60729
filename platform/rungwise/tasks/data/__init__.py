"""Labelled examples as a task uses them; nothing here knows how a model reads them."""
