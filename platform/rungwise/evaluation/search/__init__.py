"""The search over settings of pretraining: its block, its record, and what follows from trials."""
