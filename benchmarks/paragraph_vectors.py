"""Paragraph vectors here beside gensim's Doc2Vec: does logistic regression read the polarity of
IMDB's reviews off them as well?

    python -m benchmarks.paragraph_vectors              three minutes of a core
    python -m benchmarks.paragraph_vectors --reviews 25000

Both are PV-DBOW with gensim's defaults (vectors of 100, ten passes, five words of noise) and read
the same words. `inductive` reads as many reviews with labels as without, and fits a vector to each
new review that it is tested on; `transductive` has read these too, without their labels, as Le &
Mikolov did (2014, arXiv:1405.4053). A result is a mean over seeds with Student's 95 % interval.

N documents, D size of a vector
"""

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import texts
from benchmarks.common import add_results, interval, print_rows
from rungwise.models.fitting import Weights
from rungwise.models.word_vectors.paragraph_vectors import ParagraphVectorsConfig
from rungwise.tokenizer.token_text import TokenisedText

EPOCHS, MINIMUM, RATES = 10, 5, (0.025, 1e-4)  # gensim's defaults
Reviews = dict[str, list[dict[str, Any]]]  # by split
Vectors = NDArray[Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reviews", type=int, default=2500, help="of each split")
    parser.add_argument("--seeds", default="1,2,3")
    options = parser.parse_args(arguments)
    data = texts.real_data()
    if data is None:
        print("no real data: set RUNGWISE_DATA to the folder of data sets", file=sys.stderr)
        return 2
    reviews = read_reviews(data / "tasks" / "en" / "IMDB", options.reviews)
    results: dict[str, list[float]] = {}
    for seed in map(int, options.seeds.split(",")):
        for name, accuracy in accuracies(reviews, seed).items():
            results.setdefault(name, []).append(accuracy)
            print(f"seed {seed}  {name}  {accuracy:.4f}", flush=True)
    versions = {"gensim": version("gensim"), "reviews": options.reviews}
    add_results("paragraph-vectors", versions, results)
    rows = [(name, "{:.1%} [{:.1%}, {:.1%}]".format(*interval(v))) for name, v in results.items()]
    print_rows("accuracy", rows)
    return 0


def read_reviews(folder: Path, count: int) -> Reviews:
    """Read as many reviews of each split, evenly spread, as words."""
    reviews: Reviews = {}
    for split in ("train", "unsup", "test"):
        with gzip.open(folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
            lines = [*file]
        places = np.linspace(0, len(lines) - 1, min(count, len(lines))).astype(int)
        reviews[split] = [json.loads(lines[place]) for place in places]
        for each in reviews[split]:
            plain = each["text"].lower().replace("<br />", " ")
            each["words"] = re.findall(r"\w+|[^\w\s]", plain)
    return reviews


def accuracies(reviews: Reviews, seed: int) -> dict[str, float]:
    """The accuracies of both on the test reviews, new ones and ones that were read."""
    words = {split: [each["words"] for each in rows] for split, rows in reviews.items()}
    results = {}
    for way in ("inductive", "transductive"):
        read = words["train"] + words["unsup"] + (words["test"] if way == "transductive" else [])
        for name, fit_both in (("rungwise", fit_here), ("gensim", fit_gensim)):
            vectors, new = fit_both(read, words["test"] if way == "inductive" else [], seed)
            test = new if way == "inductive" else vectors[-len(words["test"]) :]
            results[f"{way}, {name}"] = read_polarity(reviews, vectors, test)
    return results


def read_polarity(reviews: Reviews, vectors_ND: Vectors, test_ND: Vectors) -> float:
    from sklearn.linear_model import LogisticRegression

    labels = {split: [each["label"] for each in reviews[split]] for split in ("train", "test")}
    line = LogisticRegression(max_iter=1000)
    line.fit(vectors_ND[: len(labels["train"])], labels["train"])
    return float(line.score(test_ND, labels["test"]))


def fit_here(
    read: Sequence[Sequence[str]], new: Sequence[Sequence[str]], seed: int
) -> tuple[Vectors, Vectors]:
    """The vectors of the documents that are read, and of new ones."""
    number, text, counts_V = number_words(read)
    config = ParagraphVectorsConfig()
    weights = fit_vectors(config, text, counts_V, seed)
    ids = [[number[word] for word in each if word in number] for each in new]
    model = config.model(weights, counts_V)
    return config.document_vectors(weights), model.sentence_vectors(ids)


def number_words(
    read: Sequence[Sequence[str]],
) -> tuple[dict[str, int], TokenisedText, NDArray[np.int64]]:
    """The number of each word, documents as numbers, and counts, 0 of rare words."""
    number = {word: place for place, word in enumerate(Counter(w for t in read for w in t))}
    ids = np.array([number[word] for words in read for word in words], np.uint32)
    starts, each = np.cumsum([0, *map(len, read)]), np.arange(len(read) + 1)
    counts_V = np.bincount(ids)
    counts_V[counts_V < MINIMUM] = 0
    return number, TokenisedText(ids, starts, each, each[:-1].astype(np.uint64)), counts_V


def fit_vectors(
    config: ParagraphVectorsConfig, text: TokenisedText, counts_V: NDArray[np.int64], seed: int
) -> Weights:
    """The weights after all passes."""
    plan, weights = config.plan(counts_V), config.start(counts_V, len(text.documents), seed)
    for epoch in range(EPOCHS):
        first, last = (RATES[0] + (RATES[1] - RATES[0]) * at / EPOCHS for at in (epoch, epoch + 1))
        config.read(weights, plan, config.units(text), (first, last), 1000 * seed + epoch)
    return weights


def fit_gensim(
    read: Sequence[Sequence[str]], new: Sequence[Sequence[str]], seed: int
) -> tuple[Vectors, Vectors]:
    from gensim.models.doc2vec import Doc2Vec, TaggedDocument

    tagged = [TaggedDocument(words, [number]) for number, words in enumerate(read)]
    model = Doc2Vec(tagged, dm=0, vector_size=100, epochs=EPOCHS, workers=1, seed=seed)
    return model.dv.vectors, np.array([model.infer_vector(words) for words in new])


if __name__ == "__main__":
    sys.exit(main())
