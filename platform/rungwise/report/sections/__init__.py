"""The sections of a page, each with its plots and the rows of its CSV files."""
