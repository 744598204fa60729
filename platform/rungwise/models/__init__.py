"""The model families of the ladder, one a file, in plain PyTorch: no Ray, no MLflow.

transformer.py is the block that the Transformer rungs share, attention.py who sees whom in it;
bert.py, gpt.py, bidirectional.py and left_to_right.py are the rungs, config.py their union.
cross_entropy.py is the loss at every position. ngram.py counts instead of training, in numpy.
"""
