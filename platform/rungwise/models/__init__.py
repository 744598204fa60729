"""The model families, one per file, in plain PyTorch: no Ray, no MLflow.

Families      bert, gpt, bidirectional, modern_bert, llama, recurrent, elmo, nnlm, ngram, word2vec,
              glove; family.py is their interface, config.py their union
Training      objectives.py the losses, cross_entropy.py the loss over the vocabulary, body.py the
              shared modules
After it      capabilities.py the protocols of a trained model, encoders.py, language_models.py
Transformers  transformer.py the block, layer.py its options, attention.py, rotary.py
ELMo          characters.py, projected_lstm.py; elmo_files.py reads the published weights
No autograd   kneser_ney.py counts n-grams in numpy; numba compiles word2vec_kernel.py and
              glove_kernel.py, whose families share word_vectors.py
"""
