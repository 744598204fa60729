"""The model families of the ladder, one a file, in plain PyTorch: no Ray, no MLflow.

transformer.py is the block that the Transformer rungs share, attention.py who sees whom in it;
bert.py, gpt.py, two_way.py and left_to_right.py are the rungs, config.py their union. heads.py
holds what fine-tuning puts on top, cross_entropy.py the loss at every position.
"""
