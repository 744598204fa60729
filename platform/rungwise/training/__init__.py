"""Training: optimizer, loop in plain PyTorch, checkpoint, and the Ray Train around them."""
