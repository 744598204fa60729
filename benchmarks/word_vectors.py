"""How fast word2vec here reads beside gensim, and whether its vectors are as good.

    python -m benchmarks.word_vectors                    all parts, more than an hour
    python -m benchmarks.word_vectors --only speed       or quality, or variants

Both read the same file, a sentence a line in lower case (Reuters-21578, Brown and 19 Gutenberg
books, 5.8 M words), with the same settings: skip-gram, 5 words of noise, vectors of 100, window 5,
words met 5 times. Speed is raw words a CPU second of a pass over the first 100,000 sentences, the
vocabulary known, each competitor in a process of its own, taking turns. Quality is after 5 passes
of one thread: the correlation (Spearman) with people's judgements, and the share of analogies
solved, of the questions whose words are all in the vocabulary; one evaluator for both.
"""

import argparse
import itertools
import json
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks import texts
from benchmarks.common import add_results, interval, median_ratio, run_alone, take_turns
from rungwise.corpus.document import read_documents
from rungwise.models.fitting import Stretch, Weights
from rungwise.models.ngram_model import SparseSums, merge_sums
from rungwise.models.word_vectors.lsa import LsaConfig
from rungwise.models.word_vectors.vector_family import mean
from rungwise.models.word_vectors.word2vec import GloveConfig, Word2vecConfig
from rungwise.tokenizer.token_text import TokenisedText

MINIMUM, EPOCHS, RATES = 5, 5, (0.025, 0.0001)
SPEED = ("rungwise", "gensim")
QUALITY: dict[str, dict[str, Any]] = {
    "skip-gram, negative": {},
    "skip-gram, hierarchical": {"output": "hierarchical"},
    "CBOW, negative": {"architecture": "cbow"},
    "CBOW, hierarchical": {"architecture": "cbow", "output": "hierarchical"},
}
CBOW_RATES = (0.075, 0.0001)  # of the gradient of the mean


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="speed,quality,variants")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--worker", nargs=3, metavar=("NAME", "ARGUMENTS", "FILE"))
    options = parser.parse_args(arguments)
    if options.worker:
        name, given, file = options.worker
        result = {"speed": speed, "quality": quality}[name](Path(file), **json.loads(given))
        print(json.dumps(result))
        return 0
    data = texts.real_data()
    if data is None:
        print("no real data: set RUNGWISE_DATA to the folder of corpora", file=sys.stderr)
        return 2
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rungwise-vectors-") as folder:
        file = Path(folder) / "sentences.txt"
        write_sentences(data, Path(folder), file)
        if "speed" in options.only:
            short = file.with_name("short.txt")
            short.write_text("".join(file.open().readlines()[:100_000]))
            results["speed"] = compare_speed(short, options.rounds)
        seeds = [int(seed) for seed in options.seeds.split(",")]
        at = {"wordsim": str(data / "wordsim")}
        if "quality" in options.only:
            results["quality"] = both(file, seeds, "skip-gram, negative", at)
        if "variants" in options.only:
            results["variants"] = variants(file, seeds, at)
    versions = {name: version(name) for name in ("numba", "gensim")}
    add_results("word-vectors", {"python": platform.python_version(), **versions}, results)
    show(results)
    return 0


def write_sentences(data: Path, folder: Path, file: Path) -> None:
    """The text as both read it."""
    config_sources = texts.sources(data)[:3]
    documents = (document for source in config_sources for document in texts.raw_documents(source))
    corpus = texts.write_corpus(documents, folder / "corpus")
    with file.open("w") as stream:
        for split in ("train", "validation"):
            for name in texts.files(corpus, split):
                for document in read_documents(corpus.folder, name):
                    for sentence in document.sentences:
                        if words := re.findall(r"\w+|[^\w\s]", sentence.lower()):
                            stream.write(" ".join(words) + "\n")


# What a worker does.


def encoded(file: Path) -> tuple[list[str], NDArray[np.int64], Stretch]:
    """The words, how often each stands there, and the text in ids; 0 is for rare words."""
    lines = [line.split() for line in file.read_text().splitlines()]
    counts = Counter(word for line in lines for word in line)
    frequent = [word for word, count in counts.most_common() if count >= MINIMUM]
    number = {word: index for index, word in enumerate(frequent, 1)}
    ids = np.array([number.get(word, 0) for line in lines for word in line], np.int32)
    starts = np.cumsum([0, *map(len, lines)])
    counts_V = np.array([0, *(counts[word] for word in frequent)])
    return ["", *frequent], counts_V, Stretch(ids, starts, np.arange(len(lines)), 0, len(lines))


def passes(
    config: Word2vecConfig,
    counts_V: NDArray[np.int64],
    text: Stretch,
    epochs: int,
    seed: int,
    rates: tuple[float, float] = RATES,
    replicas: int = 1,
) -> tuple[Weights, dict[str, float]]:
    """The weights after so many passes, and what these took."""
    plan, weights = config.plan(counts_V), config.start(counts_V, 0, seed)
    config.read(
        config.start(counts_V, 0, seed), plan, text._replace(last=100), RATES, 1
    )  # compiles
    wall, cpu = time.perf_counter(), time.process_time()
    for epoch in range(epochs):
        step = (rates[1] - rates[0]) / epochs
        at = (rates[0] + step * epoch, rates[0] + step * (epoch + 1))
        models = [{n: a.copy() for n, a in weights.items()} for _ in range(replicas)]
        for number, (model, share) in enumerate(zip(models, cut(text, replicas), strict=True)):
            config.read(model, plan, share, at, 1 + 64 * (number + 64 * (epoch + 64 * seed)))
        weights = mean(models)
    took = {"seconds": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return weights, took


def cut(stretch: Stretch, count: int) -> list[Stretch]:
    """Cut a stretch into `count` parts of about as many tokens each."""
    ends = stretch.starts[[stretch.first, stretch.last]]
    cuts = np.searchsorted(stretch.starts, np.linspace(ends[0], ends[1], count + 1)).tolist()
    cuts[0], cuts[-1] = stretch.first, stretch.last
    return [stretch._replace(first=a, last=b) for a, b in itertools.pairwise(cuts)]


def speed(file: Path, name: str) -> dict[str, Any]:
    """One pass of one competitor."""
    if name == "rungwise":
        _, counts_V, text = encoded(file)
        _, took = passes(Word2vecConfig(), counts_V, text, 1, 1)
        return took | {"words": len(text.ids)}
    model = _gensim(file, 1)
    wall, cpu = time.perf_counter(), time.process_time()
    model.train(
        corpus_file=str(file),
        total_words=model.corpus_total_words,
        total_examples=model.corpus_count,
        epochs=1,
    )
    took = {"seconds": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return took | {"words": model.corpus_total_words}


def quality(file: Path, name: str, seed: int, wordsim: str, **changes: Any) -> dict[str, Any]:
    """The scores of the vectors of one competitor after all passes."""
    if name == "gensim":
        model = _gensim(file, seed, **changes)
        model.train(
            corpus_file=str(file),
            total_words=model.corpus_total_words,
            total_examples=model.corpus_count,
            epochs=EPOCHS,
        )
        words, vectors = list(model.wv.index_to_key), model.wv.vectors
    else:
        words, counts_V, text = encoded(file)
        if name == "glove":
            config = GloveConfig()
            weights = train_glove(config, counts_V, text, seed)
        else:
            replicas = changes.pop("replicas", 1)
            config = Word2vecConfig(**changes)
            rates = CBOW_RATES if config.architecture == "cbow" else RATES
            weights, _ = passes(config, counts_V, text, EPOCHS, seed, rates, replicas)
        vectors = config.model(weights, counts_V).table[1:]
        words = words[1:]
    return scores(words, vectors, Path(wordsim))


def _gensim(file: Path, seed: int, **changes: Any) -> Any:
    from gensim.models import Word2Vec

    tree = changes.get("output") == "hierarchical"
    model = Word2Vec(
        vector_size=100,
        window=5,
        min_count=MINIMUM,
        sg=int(changes.get("architecture") != "cbow"),
        hs=int(tree),
        negative=0 if tree else 5,
        sample=1e-3,
        alpha=RATES[0],
        min_alpha=RATES[1],
        workers=1,
        seed=seed,
    )
    model.build_vocab(corpus_file=str(file))
    return model


def train_glove(
    config: GloveConfig, counts_V: NDArray[np.int64], text: Stretch, seed: int, epochs: int = 25
) -> Weights:
    """The weights after so many epochs."""
    cells = config.cells(count_sentences(config, counts_V, text), len(counts_V))
    weights, rng = config.start(counts_V, 0, seed), np.random.default_rng(seed)
    for _ in range(epochs):
        config.read(weights, cells, rng.permutation(len(cells.rows)), 0.05)
    return weights


def count_sentences(
    config: GloveConfig | LsaConfig, counts_V: NDArray[np.int64], text: Stretch
) -> SparseSums:
    """The table that the family counts, a part of the text at a time."""
    step = 50_000  # sentences
    tables = []
    for first in range(0, text.last, step):
        last = min(first + step, text.last)
        low, high = text.starts[[first, last]]
        starts = text.starts[first : last + 1] - low
        one = np.array([0, last - first])  # document
        ids = text.ids[low:high].astype(np.uint32)
        part = TokenisedText(ids, starts, one, np.zeros(1, np.uint64))
        tables.append(config.count(part, counts_V))
    return merge_sums(tables)


def scores(words: list[str], vectors: NDArray[np.float32], folder: Path) -> dict[str, Any]:
    """Correlations with people and the share of analogies solved (3CosAdd)."""
    number = {word: index for index, word in enumerate(words)}
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    result: dict[str, Any] = {"vocabulary": len(words)}
    for name, file in (("WordSim-353", "wordsim353.tsv"), ("SimLex-999", "simlex999.txt")):
        rows = [line.split("\t") for line in (folder / file).read_text().splitlines()]
        pairs = [
            (number[a], number[b], float(score))
            for a, b, score in ((r[0].lower(), r[1].lower(), r[2]) for r in rows if r[0][:1] != "#")
            if a in number and b in number
        ]
        cosines = [float(unit[a] @ unit[b]) for a, b, _ in pairs]
        correlation: Any = stats.spearmanr(cosines, [score for *_, score in pairs])
        result[name] = correlation.statistic
        result[f"{name} pairs"] = len(pairs)
    lines = (folder / "questions-words.txt").read_text().splitlines()
    questions = [line.lower().split() for line in lines]
    quadruples = np.array(
        [
            [number[w] for w in row]
            for row in questions
            if len(row) == 4 and all(w in number for w in row)
        ]
    )
    right = 0
    for part in np.array_split(quadruples, max(1, len(quadruples) // 500)):
        goal = unit[part[:, 1]] - unit[part[:, 0]] + unit[part[:, 2]]
        near = goal @ unit.T
        near[np.arange(len(part))[:, None], part[:, :3]] = -np.inf
        right += int((near.argmax(axis=1) == part[:, 3]).sum())
    return result | {"analogies": right / len(quadruples), "analogies asked": len(quadruples)}


# What runs the workers.


def run(what: str, file: Path, /, **given: Any) -> dict[str, Any]:
    """One measurement in a process of its own."""
    print(f"  {what} {given}", file=sys.stderr)
    arguments = ("--worker", what, json.dumps(given), str(file))
    return run_alone("benchmarks.word_vectors", *arguments)


def compare_speed(file: Path, rounds: int) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SPEED}
    for _, name in take_turns(list(SPEED), rounds):
        runs[name].append(run("speed", file, name=name))
    return runs


def both(file: Path, seeds: list[int], label: str, at: dict[str, Any]) -> dict[str, Any]:
    """The scores of both competitors."""
    return {
        f"{label}: {name}": [
            run("quality", file, name=name, seed=seed, **at, **QUALITY[label]) for seed in seeds
        ]
        for name in ("rungwise", "gensim")
    }


def variants(file: Path, seeds: list[int], at: dict[str, Any]) -> dict[str, Any]:
    """The other three models of the papers, and with one seed what has no peer."""
    first, *others = QUALITY
    found: dict[str, Any] = {}
    for label in others:
        found |= both(file, seeds, label, at)
    arguments = {"seed": seeds[0], **at}
    found[f"{first}: rungwise, 2 replicas"] = [
        run("quality", file, name="rungwise", replicas=2, **arguments)
    ]
    found["GloVe: rungwise"] = [run("quality", file, name="glove", **arguments)]
    return found


def show(found: dict[str, Any]) -> None:
    console = Console(width=140)
    if speeds := found.get("speed"):
        table = Table("ratio", "M words a CPU second", "ratio of wall time", box=None)
        ours, peer = (speeds[name] for name in SPEED)
        rates = [[run["words"] / run["seconds"] / 1e6 for run in rows] for rows in (ours, peer)]
        ratio = median_ratio(*rates)
        wall = median(b["wall"] / a["wall"] for a, b in zip(ours, peer, strict=True))
        each = f"{median(rates[0]):.3f} over {median(rates[1]):.3f}"
        table.add_row(f"{ratio:.2f}", each, f"{wall:.2f}")
        console.print(table)
    if judged := found.get("quality", {}) | found.get("variants", {}):
        names = ("WordSim-353", "SimLex-999", "analogies")
        table = Table("model", "seeds", *names, box=None)
        for label, runs in judged.items():
            table.add_row(label, str(len(runs)), *(stated([r[n] for r in runs]) for n in names))
        console.print(table)


def stated(values: list[float]) -> str:
    """Mean and Student's 95 % interval in percent."""
    mean, low, high = (100 * each for each in interval(values))
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    sys.exit(main())
