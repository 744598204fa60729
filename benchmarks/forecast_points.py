"""Points of the curves of eleven rungs on four texts, for `benchmarks.forecast` to backtest.

    python -m benchmarks.forecast_points --root /tmp/curves           hours of a core
    python -m benchmarks.forecast_points --root /tmp/curves --corpora novels --rungs gpt,lstm

Budgets go from 1/64 of a run of four million tokens to the whole, with a second seed at the
smallest two: by steps for networks, by documents for counts. Two texts are as long as what a
network reads, the abstracts half as long; the novels are read four times, and `docs_text` has runs
of all steps on parts of a text, so that repeats are in the data. The learning rate is the same at
every budget.

One stage runs at a time, on one thread. Points are written after each group of rungs; the same
command goes on where it was stopped. Seconds are of the wall, so where others use the machine,
those of a network are its tokens times the fewest seconds a token of its rung.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import results_path
from benchmarks.texts import real_data
from rungwise.core.configuration.config import validate
from rungwise.core.stages.stage import Stage
from rungwise.evaluation.pretrainings import read_points
from rungwise.forecast.curves import Point
from rungwise.pipeline.experiment import plan_experiment, resolve_variants
from rungwise.pipeline.ladder import plan_curve
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import Graph
from rungwise.pipeline.workflow import run as run_workflow

BUDGETS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
CURVE = {"budgets": BUDGETS, "seeds": 2}
TEXT_CURVE = {"budgets": (1 / 32, 1 / 16, 1 / 8, 1 / 2, 1.0), "seeds": 1, "of": "text"}

ENGLISH = {"kind": "wordpiece", "vocab_size": 4096, "sample_megabytes": 12}
# By name: the sources, the tokenizer, the steps of a network, and the curve.
CORPORA: dict[str, tuple[list[dict[str, Any]], dict[str, Any], int, dict[str, Any]]] = {
    "docs": ([{"kind": "pydocs"}], ENGLISH, 8192, CURVE),
    "reviews": (
        [
            {
                "kind": "jsonl",
                "paths": ["tasks/en/IMDB/unsup.jsonl.gz"],
                "id_field": "id",
                "share": 0.25,
            }
        ],
        ENGLISH,
        8192,
        CURVE,
    ),
    "abstracts": (
        [{"kind": "text", "paths": ["corpora/zh/csl_abstracts"], "documents": "line"}],
        {"kind": "character", "vocab_size": 4096},
        8192,
        CURVE,
    ),
    "novels": (
        [
            {
                "kind": "text",
                "paths": [
                    "corpora/en/gutenberg/austen-persuasion.txt.gz",
                    "corpora/en/gutenberg/carroll-alice.txt.gz",
                ],
                "documents": "chunk",
                "chunk_kilobytes": 2,
                "boilerplate": "gutenberg",
            }
        ],
        ENGLISH,
        1024,
        CURVE,
    ),
    "docs_text": ([{"kind": "pydocs"}], ENGLISH, 1024, TEXT_CURVE),
}

WARMUP = 1 / 128  # of all steps; a run at 1/64 of them decays after some more
SCHEDULE = {"kind": "warmup_stable_decay", "warmup_steps": 8}
STEPS = {
    "steps": 1024,
    "global_batch_size": 8,
    "validation_every_steps": 1024,
    "optimizer": {"kind": "muon", "learning_rate": 4e-3, "schedule": SCHEDULE},
}
MASKED = {"kind": "masked_blocks", "sequence_length": 64, "masking": {"rate": 0.3}}
TRANSFORMER = {
    "num_layers": 2,
    "num_heads": 2,
    "hidden_size": 128,
    "intermediate_size": 512,
    "max_position_embeddings": 64,
    "initializer_range": 0.06,
}


def _network(kind: str, **model: Any) -> dict[str, Any]:
    return {"model": {"kind": kind, **model}, "pretrain": STEPS}


RUNGS: dict[str, dict[str, Any]] = {
    "ngram3": {"model.order": 3},
    "ngram5": {"model.order": 5, "model.fallback_discounts": [0.5, 1.0, 1.5]},  # little text
    "brown": {"model": {"kind": "brown", "classes": 128}},
    "nnlm": _network("nnlm", order=5, embedding_size=64, hidden_size=128),
    "log_bilinear": _network("log_bilinear", embedding_size=128),
    "rnn": _network("rnn", num_layers=1, hidden_size=128),
    "lstm": _network("lstm", num_layers=1, hidden_size=128),
    "elmo": _network(
        "elmo",
        hidden_size=64,
        cell_size=128,
        filters=[[1, 16], [2, 32], [3, 32]],
        max_characters=12,
        num_highways=1,
    ),
    "gpt": _network("gpt", **TRANSFORMER),
    "bidirectional": _network("bidirectional", **TRANSFORMER | {"num_layers": 1}),
    "bert": {
        "model": {"kind": "bert", "norm": "pre", **TRANSFORMER},
        "pretrain": STEPS | {"objective": "mlm", "output_bias": "zeros"},
        "instances": MASKED,
    },
}
# What one run of the workflow builds.
GROUPS: tuple[tuple[str, ...], ...] = (
    ("ngram3", "ngram5", "gpt"),
    ("brown", "lstm", "bert"),
    ("nnlm", "rnn", "bidirectional"),
    ("log_bilinear", "elmo"),
)
# Where not all rungs are trained: those that read parts of a text; and no clusters of a text of
# which 1/64 has fewer words than classes.
ONLY = {"docs_text": {"gpt", "lstm"}, "novels": RUNGS.keys() - {"brown"}}


def make_recipe(corpus: str, rungs: Iterable[str], root: str) -> Recipe:
    sources, tokenizer, steps, curve = CORPORA[corpus]

    lengthened = {
        "pretrain.steps": steps,
        "pretrain.optimizer.schedule.warmup_steps": round(steps * WARMUP),
    }
    data = real_data()
    sources = [
        source | {"paths": [str(data / path) for path in source["paths"]]}
        if data and "paths" in source
        else source
        for source in sources
    ]
    blocks = {
        "name": corpus,
        "root": root,
        "corpus": {"sources": sources, "held_out_fraction": 0.08},
        "tokenizer": tokenizer,
        "instances": {"kind": "causal", "sequence_length": 64},
        "model": {"kind": "ngram"},
        "pretrain": {"kind": "counts"},
        "variants": {
            name: RUNGS[name] | (lengthened if "pretrain" in RUNGS[name] else {}) for name in rungs
        },
        "measure": {"perplexity": {"kind": "perplexity", "documents": 60}},
        "curve": curve,
        "compute": {"num_workers": 1, "max_concurrent_stages": 1},
    }
    return validate(Recipe, blocks)


def list_stages(recipe: Recipe) -> list[Stage]:
    variants = resolve_variants(recipe)
    experiment = plan_experiment(recipe, variants)
    graph = Graph()
    for stage in experiment.stages.values():
        graph.include(stage)
    plan_curve(graph, recipe, variants, experiment)
    return list(graph.stages.values())


def write_points(file: Path, corpus: str, points: Sequence[Point]) -> None:
    """Write points in the place of those of the same rungs before, a line each; networks of one
    rung have the pace of the run that was disturbed least, whatever the text."""
    rungs = {point.rung for point in points}
    rows = json.loads(file.read_text()) if file.exists() else []
    rows = [row for row in rows if row["corpus"] != corpus or row["rung"] not in rungs]
    for point in points:
        documents = point.documents and [round(bits, 4) for bits in point.documents]
        rows.append({"corpus": corpus, **asdict(point), "documents": documents})
    networks = [row for row in rows if row["fitted"] == "gradient"]
    for row in networks:
        paces = [
            each["seconds"] / each["tokens"] for each in networks if each["rung"] == row["rung"]
        ]
        row["seconds"] = row["tokens"] * min(paces)
    file.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", required=True, help="folder for what is built")
    parser.add_argument("--corpora", default=",".join(CORPORA), help="with commas")
    parser.add_argument("--rungs", default=",".join(RUNGS), help="with commas")
    parser.add_argument("--results", type=Path, default=results_path("forecast-points"))
    options = parser.parse_args(arguments)
    asked = options.rungs.split(",")
    for group in GROUPS:
        for corpus in options.corpora.split(","):
            known = ONLY.get(corpus, RUNGS)
            rungs = [rung for rung in group if rung in asked and rung in known]
            if rungs:
                recipe = make_recipe(corpus, rungs, options.root)
                points = read_points(run_workflow(list_stages, recipe).artifacts["curve"])
                write_points(options.results, corpus, points)
                print(f"{corpus}: {len(points)} points of {', '.join(rungs)}", flush=True)


if __name__ == "__main__":
    main()
