"""The model families by gradient and by counts, with what only they need."""
