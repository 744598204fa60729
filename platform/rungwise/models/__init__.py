"""The model families of the ladder, one a file, in plain PyTorch: no Ray, no MLflow.

bert.py, gpt.py and bidirectional.py are the families, config.py their union, family.py what each of
them answers, objectives.py what they are trained on, capabilities.py what they can be asked when
they are trained. transformer.py is the block that the Transformers share, attention.py who sees
whom in it; encoders.py and language_models.py are what the families share after training.
cross_entropy.py is the loss at every position. ngram.py counts instead of training, in numpy.
"""
