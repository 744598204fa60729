"""The model families, in plain PyTorch or numba: no Ray, no MLflow.

family.py, fitting.py   the interface of a family, and of each way in which it is fitted
config.py               the union of the families: a new one adds its name here
families/               one file per family, with the parts that only it needs
word_vectors/           families of vectors for words and documents, with compiled loops
transformer/            the blocks and the body that families share
losses/                 objectives, and cross entropy over a vocabulary
trained/                what a trained model can do: capabilities.py and what offers them
"""
