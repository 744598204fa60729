"""The model families of the ladder, one a file, in plain PyTorch: no Ray, no MLflow.

transformer.py is the block that BERT and the later Transformer rungs share; heads.py holds what
fine-tuning puts on top.
"""
