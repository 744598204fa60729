"""The model families, in plain PyTorch or numba: no Ray, no MLflow."""
