"""What a model is worth: scores on new seeds, with intervals."""
