"""What a family suggests for the size at hand, and what other settings reach in how many seconds.

    python -m benchmarks.tuning                        a night: every text, family and setting
    python -m benchmarks.tuning --only word2vec,glove --texts brown_and_wiki --seeds 0,1,2
    python -m benchmarks.tuning --only gpt,lstm --texts quick_ladder --seconds 600

Vectors are measured on the similarity part of WordSim-353, of words that the text has five times or
more; networks by nats a token of held-out rows, beside counting with Kneser-Ney of order 4. The
first setting of a family is what it suggests for the text and the seconds; the others change some
of its keys. Everything runs in this process on `--threads`, and seconds are those of its processor.
"""

import argparse
import bz2
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from benchmarks import texts
from benchmarks.common import add_results
from benchmarks.learning import build, find_fit, pretrain_here
from benchmarks.word_vectors import encoded, passes, train_glove
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.summary import InstancesSummary
from rungwise.models.config import model_config
from rungwise.models.suggestion import Size
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.variants import change_recipe
from rungwise.pipeline.workflow import load_recipe

WORDS = re.compile(r"\w+|[^\w\s]")
# The first words of the documents of each, in turn.
TEXTS: dict[str, tuple[str, ...]] = {
    "brown_300k": ("brown",),
    "brown_and_wiki": ("brown", "wiki"),
    "books_and_news": ("brown", "wiki", "reuters", "gutenberg"),
}
MOST_WORDS = {"brown_300k": 300_000}
QUICK_LADDER = "quick_ladder"  # the rows of that recipe
# Changes of what the family suggests.
NETWORKS: dict[str, dict[str, Any]] = {
    "suggested": {},
    "rows of 32": {"pretrain.global_batch_size": 32},
    "twice the rate": {"rate": 2.0},
    "zeros": {"pretrain.output_bias": "zeros"},
}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "word2vec": {
        "suggested": {},
        "as the paper": {"pretrain.epochs": 5, "model.subsample": 1e-3},
        "half the passes": {"passes": 0.5},
        "subsample 1e-3": {"model.subsample": 1e-3},
    },
    "glove": {
        "suggested": {},
        "as the paper": {"model.x_max": 100.0},
        "x_max 10": {"model.x_max": 10.0},
        "half x_max": {"factor": 0.5},
    },
    "gpt": NETWORKS,
    "lstm": NETWORKS,
}


def read_sentences(name: str, data: Path) -> Iterator[str]:
    """Sentences of a text, lower case, words between blanks."""
    streams = [_source(each, data) for each in TEXTS[name]]
    words = 0
    while streams:
        for stream in list(streams):
            document = next(stream, None)
            if document is None:
                streams.remove(stream)
                continue
            for sentence in document:
                tokens = WORDS.findall(sentence.lower())
                words += len(tokens)
                if tokens:
                    yield " ".join(tokens)
            if words >= MOST_WORDS.get(name, sys.maxsize):
                return


def _source(name: str, data: Path) -> Iterator[Sequence[str]]:
    if name == "wiki":
        from gensim.corpora.wikicorpus import extract_pages, filter_wiki

        with bz2.open(data / "corpora/en/enwiki_sample/enwiki-sample.xml.bz2") as file:
            for _, text, _ in extract_pages(file):
                yield [line for line in filter_wiki(text).splitlines() if line.strip()]
        return
    (source,) = (each for each in texts.sources(data) if name in str(each.paths))
    for document in texts.raw_documents(source):
        yield document.paragraphs


def similarity(words: Sequence[str], table: np.ndarray[Any, Any], data: Path) -> dict[str, Any]:
    """The rank correlation with people's judgements, and of how many pairs."""
    number = {word: place for place, word in enumerate(words)}
    unit = table / np.linalg.norm(table, axis=1, keepdims=True).clip(1e-9)
    lines = (data / "wordsim" / "EN-WS-353-SIM.txt").read_text("utf-8").lower().splitlines()
    rows = [line.split() for line in lines]
    pairs = [(number[a], number[b], float(s)) for a, b, s in rows if a in number and b in number]
    cosines = [float(unit[a] @ unit[b]) for a, b, _ in pairs]
    result: Any = stats.spearmanr(cosines, [score for *_, score in pairs])
    return {"similarity": float(result.statistic), "pairs": len(pairs)}


def train_vectors(
    kind: str, file: Path, size: Size, changes: dict[str, Any], seed: int, data: Path
) -> dict[str, Any]:
    words, counts_V, text = encoded(file)
    family = model_config({"kind": kind})
    keys = family.suggest(size._replace(tokens=len(text.ids), vocabulary=len(words))) | changes
    keys["pretrain.epochs"] = max(1, round(keys["pretrain.epochs"] * keys.pop("passes", 1)))
    model = {key[6:]: value for key, value in keys.items() if key.startswith("model.")}
    if factor := keys.pop("factor", None):
        model["x_max"] *= factor
    config: Any = model_config({"kind": kind, "size": 100} | model)
    epochs, began = keys["pretrain.epochs"], time.process_time()
    if kind == "glove":
        weights = train_glove(config, counts_V, text, seed, epochs)
    else:
        weights, _ = passes(config, counts_V, text, epochs, size.workers, seed)
    seconds = time.process_time() - began
    table = config.model(weights, counts_V).table[1:]
    return {"words": len(text.ids), "keys": keys, "seconds": seconds} | similarity(
        words[1:], table, data
    )


def train_network(
    kind: str, recipe: Recipe, instances: Artifact, size: Size, changes: dict[str, Any], seed: int
) -> dict[str, Any]:
    """The nats a token of held-out rows, and the seconds, of a rung of the recipe."""
    rung, summary = change_recipe(recipe, kind), InstancesSummary.of(instances)
    assert rung.model
    keys = rung.model.suggest(size._replace(tokens=summary.tokens, vocabulary=summary.vocab_size))
    tokens = keys["pretrain.steps"] * keys["pretrain.global_batch_size"]
    keys["pretrain.optimizer.learning_rate"] *= changes.pop("rate", 1.0)
    keys |= changes
    steps = tokens // keys["pretrain.global_batch_size"]  # as many tokens in all
    every = {"pretrain.steps": steps, "pretrain.validation_every_steps": max(1, steps // 20)}
    fit = find_fit(rung.with_changes(keys | every | {"pretrain.seed": seed}, "tuning"))
    facts: dict[str, Any] = {"operations": 0.0, "seconds": 0.0, "steps": [], "validation": []}
    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="rungwise-tuning-") as folder:
        pretrain_here(fit, instances, Path(folder), None, facts)
    return {
        "keys": keys | every,
        "seconds": time.process_time() - began,
        "curve": facts["validation"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(SETTINGS), help="kinds of model, with commas")
    parser.add_argument("--texts", default=",".join([*TEXTS, QUICK_LADDER]))
    parser.add_argument("--settings", help="names with commas; default: all of a kind")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    data = texts.real_data()
    if data is None:
        parser.error("no real data: set RUNGWISE_DATA to the folder of corpora")
    size = Size(1, 1, options.seconds, options.threads)
    results: dict[str, Any] = {}
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="rungwise-tuning-") as folder:
        for name in options.texts.split(","):
            file = Path(folder) / name
            recipe = instances = None
            if name == QUICK_LADDER:
                recipe = load_recipe("ladder-quick", [])
                instances = build(recipe, lambda first: {"instances": first["instances"]})[
                    "instances"
                ]
            else:
                file.write_text("".join(f"{each}\n" for each in read_sentences(name, data)))
            for kind, setting in _settings(options, reads_rows=instances is not None):
                runs = []
                for seed in map(int, options.seeds.split(",")):
                    changes = dict(SETTINGS[kind][setting])
                    if recipe is not None and instances is not None:
                        runs.append(train_network(kind, recipe, instances, size, changes, seed))
                    else:
                        runs.append(train_vectors(kind, file, size, changes, seed, data))
                    print(json.dumps([name, kind, setting, seed, runs[-1]]), flush=True)
                results[f"{name}, {kind}, {setting}, {options.seconds:.0f} s"] = runs
                add_results("tuning", {}, results)


def _settings(options: argparse.Namespace, reads_rows: bool) -> Iterator[tuple[str, str]]:
    """Yield the kinds of model that learn from such a text, with their settings."""
    for kind in options.only.split(","):
        for setting in SETTINGS[kind]:
            matches = options.settings is None or setting in options.settings.split(",")
            if matches and (SETTINGS[kind] is NETWORKS) == reads_rows:
                yield kind, setting


if __name__ == "__main__":
    main()
