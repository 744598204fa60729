"""The model families of the ladder, one a file, in plain PyTorch: no Ray, no MLflow.

bert.py, gpt.py, bidirectional.py, modern_bert.py, llama.py, recurrent.py, elmo.py, nnlm.py and
ngram.py are the families, config.py their union, family.py what each of them answers, objectives.py
what they are trained on, capabilities.py what they can be asked when they are trained.
transformer.py is the block that the Transformers share, layer.py its options, attention.py who sees
whom in it, rotary.py its positions; characters.py and projected_lstm.py are what ELMo is made of,
elmo_files.py reads its published weights. body.py is what all share in training, encoders.py and
language_models.py after it. cross_entropy.py is the loss at every position. The n-gram model
(kneser_ney.py) counts instead of training, in numpy; word2vec.py and glove.py learn vectors
(word_vectors.py) in loops that numba compiles, in files named after them.
"""
