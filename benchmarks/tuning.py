"""What a family suggests for the size at hand, and what other settings reach in how many seconds.

    python -m benchmarks.tuning                        a night: every text, family and setting
    python -m benchmarks.tuning --only word2vec,glove --texts brown_and_wiki --seeds 0,1,2
    python -m benchmarks.tuning --only gpt,lstm --texts quick_ladder --settings suggested \\
        --seconds 30,60,120,300,600 --seeds 0
    python -m benchmarks.tuning --only gpt,lstm,nnlm,bert --texts 0.3,1,10 --seeds 0

Texts for vectors are named in TEXTS. Networks read that of the quick ladder, or so many million
words of ten-million-words.yaml, with the quick ladder's tokenizer and models.

The first setting of a family is what it suggests for the text and the seconds; the others change
some of its keys. Everything runs in this process on `--threads`.

Vectors are measured on the similarity part of WordSim-353, of words that the text has five times or
more; their seconds are of the processor. Networks are measured by nats a token of all held-out
rows, beside counting with Kneser-Ney of order 4, which sees whole documents. Each number of seconds
is a run of its own, since the rate falls to nothing at the end of it: a longer run has not learnt
as much at that moment. These seconds are of the training loop, so the core must be free.
"""

import argparse
import bz2
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy import stats

from benchmarks import texts
from benchmarks.common import add_results
from benchmarks.learning import build, find_fit, pretrain_here
from benchmarks.text_sizes import read_part
from benchmarks.word_vectors import count_sentences, encoded, passes, train_glove
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.summary import InstancesSummary
from rungwise.models.config import model_config
from rungwise.models.family import Size
from rungwise.pipeline.experiment import change_recipe
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_stages
from rungwise.pipeline.workflow import load_recipe
from rungwise.training.summary import PretrainSummary

WORDS = re.compile(r"\w+|[^\w\s]")
# The first words of the documents of each, in turn.
TEXTS: dict[str, tuple[str, ...]] = {
    "brown_300k": ("brown",),
    "brown_and_wiki": ("brown", "wiki"),
    "books_and_news": ("brown", "wiki", "reuters", "gutenberg"),
}
MOST_WORDS = {"brown_300k": 300_000}
QUICK_LADDER = "quick_ladder"
PARTS = ("0.3", "1", "10")  # of ten million words
_MOST_STEPS = 10_000_000  # where seconds end the run
Runs = dict[tuple[str, str, float], list[dict[str, Any]]]  # by kind, setting and seconds
# Changes of what the family suggests.
NETWORKS: dict[str, dict[str, Any]] = {
    "suggested": {},
    "8 rows": {"pretrain.global_batch_size": 8},
    "32 rows": {"pretrain.global_batch_size": 32},
    "half the rate": {"rate": 0.5},
    "twice the rate": {"rate": 2.0},
    "other bias": {"other_bias": True},
}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "word2vec": {
        "suggested": {},
        "as the paper": {"pretrain.epochs": 5, "model.subsample": 1e-3},
        "half the passes": {"passes": 0.5},
        "four times the passes": {"passes": 4},
        "subsample 1e-3": {"model.subsample": 1e-3},
    },
    "glove": {
        "suggested": {},
        "as the paper": {"model.x_max": 100.0},
        "x_max 10": {"model.x_max": 10.0},
        "half x_max": {"factor": 0.5},
    },
    "lsa": {"ppmi": {"model.contexts": "window", "model.weighting": "ppmi"}},
    **dict.fromkeys(("nnlm", "rnn", "lstm", "elmo", "gpt", "bidirectional", "bert"), NETWORKS),
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
    file: Path, data: Path, kind: str, size: Size, changes: dict[str, Any], seed: int
) -> dict[str, Any]:
    words, counts_V, text = encoded(file)
    family = model_config({"kind": kind})
    size = size._replace(tokens=len(text.ids), vocabulary=len(words))
    keys = {"pretrain.epochs": 1} | family.suggest(size) | changes
    keys["pretrain.epochs"] = max(1, round(keys["pretrain.epochs"] * keys.pop("passes", 1)))
    model = {key[6:]: value for key, value in keys.items() if key.startswith("model.")}
    if factor := keys.pop("factor", None):
        model["x_max"] *= factor
    config: Any = model_config({"kind": kind, "size": 100} | model)
    epochs, began = keys["pretrain.epochs"], time.process_time()
    if kind == "lsa":
        cells = config.cells(count_sentences(config, counts_V, text), len(counts_V))
        model = config.solve(cells, counts_V, 1, seed).model
    else:
        if kind == "glove":
            weights = train_glove(config, counts_V, text, seed, epochs)
        else:
            weights, _ = passes(config, counts_V, text, epochs, seed)
        model = config.model(weights, counts_V)
    seconds = time.process_time() - began
    result = {"words": len(text.ids), "keys": keys, "seconds": seconds}
    return result | similarity(words[1:], model.table[1:], data)


def read_recipe(text: str, overrides: Sequence[str]) -> Recipe:
    """The quick ladder, on its own text or on so many million words."""
    recipe = load_recipe("ladder-quick", overrides)
    if text == QUICK_LADDER:
        return recipe
    corpus = read_part(float(text), (), ()).corpus
    assert corpus
    changes = {"corpus": corpus.model_dump(mode="json"), "name": f"tuning-{text}"}
    return recipe.with_changes(changes, "tuning")


def build_counted(recipe: Recipe) -> float:
    """The nats a token of Kneser-Ney of order 4."""
    counted = pretrain_stages(change_recipe(recipe, "ngram4"))["pretrain"]
    built = build(recipe, lambda _: {"counted": counted})
    return float(PretrainSummary.of(built["counted"]).final["loss"])


def train_network(
    rung: Recipe, instances: Artifact, size: Size, changes: dict[str, Any], seed: int
) -> dict[str, Any]:
    """The nats a token of held-out rows that a rung reaches in the seconds, and what it read."""
    rows = InstancesSummary.of(instances)
    assert rung.model
    keys = rung.model.suggest(size._replace(tokens=rows.tokens, vocabulary=rows.vocab_size))
    keys["pretrain.optimizer.learning_rate"] *= changes.pop("rate", 1.0)
    suggested = keys.pop("pretrain.steps")
    if changes.pop("other_bias", False):
        is_zero = keys.get("pretrain.output_bias") == "zeros"
        changes["pretrain.output_bias"] = "frequencies" if is_zero else "zeros"
    keys |= changes
    ends = {
        "pretrain.steps": _MOST_STEPS,
        "pretrain.max_seconds": size.seconds,
        "pretrain.validation_every_steps": _MOST_STEPS,
        "pretrain.validation_instances": rows.instances.validation,
    }
    fit = find_fit(rung.with_changes(keys | ends | {"pretrain.seed": seed}, "tuning"))
    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="rungwise-tuning-") as folder:
        summary = PretrainSummary.of(pretrain_here(fit, instances, Path(folder), None))
    assert summary.gradient
    return {
        "keys": keys,
        "seconds": summary.seconds,
        "processor_seconds": time.process_time() - began,
        "steps": summary.gradient.steps,
        "suggested_steps": suggested,
        "tokens": summary.tokens,
        "loss": summary.final[fit.objective.tokens.loss_key],
    }


def describe_networks(runs: Runs, counted: float) -> list[str]:
    """A table of the nats that settings reach in the seconds, and when they pass counting."""
    budgets = sorted({seconds for *_, seconds in runs})
    heads = ["nats a token, after million tokens", *(f"{seconds:g} s" for seconds in budgets)]
    lines = [_row(heads), "|---" + "|---:" * len(budgets) + "|"]
    ends: list[str] = []
    for name in dict.fromkeys((kind, setting) for kind, setting, _ in runs):
        reached = {each: _mean(runs[*name, each]) for each in budgets if (*name, each) in runs}
        cells = [f"{loss:.3f}, {tokens / 1e6:.1f}" for loss, tokens in reached.values()]
        lines.append(_row([", ".join(name), *cells]))
        passing = [each for each, (loss, _) in reached.items() if loss < counted]
        seconds = min(passing, default=max(reached))
        verb = "passes" if passing else "does not pass"
        loss, tokens = reached[seconds]
        ends.append(
            f"{', '.join(name)}: {verb} Kneser-Ney of order 4 ({counted:.3f}) in {seconds:g} s, "
            f"which are {tokens / 1e6:.2f} million tokens ({loss:.3f})"
        )
    return [*lines, "", *ends]


def _mean(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The mean loss and tokens over seeds."""
    return fmean(run["loss"] for run in runs), fmean(run["tokens"] for run in runs)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(SETTINGS), help="kinds of model, with commas")
    parser.add_argument("--texts", default=",".join([*TEXTS, QUICK_LADDER, *PARTS]))
    parser.add_argument("--settings", help="names with commas; default: all of a kind")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--seconds", default="60", help="of a run; several with commas")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="key=value of the quick ladder's recipe")
    options = parser.parse_args(arguments)
    if unknown := {*options.only.split(",")} - {*SETTINGS}:
        parser.error(f"--only: there is no {unknown.pop()}; there are {', '.join(SETTINGS)}")
    data = texts.real_data()
    if data is None:
        parser.error("no real data: set RUNGWISE_DATA to the folder of corpora")
    torch.set_num_threads(options.threads)
    for name in options.texts.split(","):
        if name in TEXTS:
            tune_vectors(name, data, options)
        else:
            tune_networks(name, options)


def tune_vectors(name: str, data: Path, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="rungwise-tuning-") as folder:
        file = Path(folder) / name
        file.write_text("".join(f"{each}\n" for each in read_sentences(name, data)))
        for kind in options.only.split(","):
            if SETTINGS[kind] is not NETWORKS:
                tune(name, kind, partial(train_vectors, file, data, kind), options)


def tune_networks(name: str, options: argparse.Namespace) -> None:
    recipe = read_recipe(name, options.overrides)
    counted = build_counted(recipe)
    add_results("tuning", {}, {f"{name}, Kneser-Ney of order 4": counted})
    runs: Runs = {}
    for kind in options.only.split(","):
        if SETTINGS[kind] is NETWORKS:
            rung = change_recipe(recipe, kind)
            instances = build(rung, lambda stages: stages)["instances"]
            runs |= tune(name, kind, partial(train_network, rung, instances), options)
    print("\n".join(describe_networks(runs, counted)))


def tune(
    name: str, kind: str, train: Callable[..., dict[str, Any]], options: argparse.Namespace
) -> Runs:
    """Run each setting of a kind for each number of seconds with each seed."""
    runs: Runs = {}
    chosen = options.settings.split(",") if options.settings else [*SETTINGS[kind]]
    for setting in (each for each in SETTINGS[kind] if each in chosen):
        for seconds in map(float, options.seconds.split(",")):
            size = Size(1, 1, seconds, options.threads)
            results = runs[kind, setting, seconds] = []
            for seed in map(int, options.seeds.split(",")):
                results.append(train(size, dict(SETTINGS[kind][setting]), seed))
                print(json.dumps([name, kind, setting, seconds, seed, results[-1]]), flush=True)
            add_results("tuning", {}, {f"{name}, {kind}, {setting}, {seconds:g} s": results})
    return runs


if __name__ == "__main__":
    main()
