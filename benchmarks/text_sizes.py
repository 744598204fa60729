"""What more text is worth: the rungs of ten-million-words.yaml on parts of its text.

    python -m benchmarks.text_sizes                         hours of two cores
    python -m benchmarks.text_sizes --millions 10,1 --only ngram5,gpt \\
        measure.minimal_pairs.pairs_per_paradigm=100

A part has the same share of the documents of every source, and lies inside the larger ones. Each
part has a tokenizer of its own, so that losses are compared as bits per byte, of one text for all:
documents that the whole holds out, which no part trains on. Networks take the steps of the recipe
at every size, so that nothing but the text differs; word vectors take the passes and weights that
their families suggest for a part and ten minutes.

Stages are built below the recipe's root and found again; the same command goes on where it was
stopped.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import add_results
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage
from rungwise.corpus.summary import CorpusSummary, read_split
from rungwise.evaluation.suites.items import MeasureSummary
from rungwise.instances.order import evenly
from rungwise.models.family import Size
from rungwise.pipeline.experiment import change_recipe, plan_experiment, resolve_variants
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import instances_stages
from rungwise.pipeline.workflow import load_recipe
from rungwise.pipeline.workflow import run as run_workflow

RECIPE, WHOLE = "ten-million-words", 10.0  # millions of words
VECTORS = ("word2vec", "glove")
SECONDS = 600.0
HELD_OUT_DOCUMENTS = 200
METRICS = ("bits_per_byte", "accuracy", "correlation")


def read_part(millions: float, only: Sequence[str], overrides: Sequence[str]) -> Recipe:
    """The recipe with a share of its text; without the rungs that are not asked for."""
    recipe = load_recipe(RECIPE, overrides)
    assert recipe.corpus
    changes: dict[str, Any] = {"name": f"{RECIPE}-{millions:g}"}
    for number, source in enumerate(recipe.corpus.sources):
        changes[f"corpus.sources.{number}.share"] = source.share * millions / WHOLE
    if only:
        changes |= {f"variants.{name}": None for name in recipe.variants if name not in only}
    return recipe.with_changes(changes, "text_sizes")


def suggest_vectors(recipe: Recipe, words: int) -> Recipe:
    """Take the passes and weights of word vectors from their families."""
    changes: dict[str, Any] = {}
    for name in VECTORS:
        if name in recipe.variants:
            model = change_recipe(recipe, name).model
            assert model
            keys = model.suggest(Size(words, recipe.planned_vocab_size(), SECONDS))
            changes |= {f"variants.{name}.{key}": value for key, value in keys.items()}
    return recipe.with_changes(changes, "text_sizes")


def write_held_out(corpus: Artifact, file: Path) -> None:
    """Write held-out documents, evenly spread, a document a line."""
    lines = [" ".join(document.sentences) for document in read_split(corpus, "validation")]
    chosen = [lines[index] for index in evenly(len(lines), HELD_OUT_DOCUMENTS)]
    file.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")


def build(stages: Callable[[Recipe], list[Stage]], recipe: Recipe) -> dict[str, Artifact]:
    return run_workflow(stages, recipe).artifacts


def build_corpus(recipe: Recipe) -> Artifact:
    def stages(recipe: Recipe) -> list[Stage]:
        return [instances_stages(recipe)["corpus"]]

    return build(stages, recipe)["corpus"]


def measure_rungs(recipe: Recipe) -> dict[str, dict[str, float]]:
    """Build the rungs and their suites; return the scores of each."""
    titles: dict[str, str] = {}

    def stages(recipe: Recipe) -> list[Stage]:
        experiment = plan_experiment(recipe, resolve_variants(recipe))
        titles.update(
            {rung: first.display_name for rung, (first, *_) in experiment.measured.items()}
        )
        return list(experiment.stages.values())

    artifacts = build(stages, recipe)
    return {rung: read_scores(artifacts[title]) for rung, title in titles.items()}


def read_scores(measured: Artifact) -> dict[str, float]:
    """The values of whole suites, by suite and part."""
    return {
        f"{row.suite} {row.part}".strip(): row.value
        for row in MeasureSummary.of(measured).scores
        if row.group is None and row.metric in METRICS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--millions", default="10,5,2,1", help="of words, with commas")
    parser.add_argument("--only", default="", help="rungs, with commas; default: all")
    parser.add_argument("overrides", nargs="*", help="key=value of the recipe")
    options = parser.parse_args(arguments)
    only = options.only.split(",") if options.only else []
    part = partial(read_part, only=only, overrides=options.overrides)
    with tempfile.TemporaryDirectory(prefix="rungwise-text-sizes-") as folder:
        file = Path(folder) / "held-out.txt"
        write_held_out(build_corpus(part(WHOLE)), file)
        for millions in map(float, options.millions.split(",")):
            recipe = part(millions)
            words = CorpusSummary.of(build_corpus(recipe)).words.train
            suites = {"measure.perplexity": {"kind": "perplexity", "path": str(file)}}
            recipe = suggest_vectors(recipe.with_changes(suites, "text_sizes"), words)
            rungs = measure_rungs(recipe)
            result = {"words": words, "rungs": rungs}
            print(json.dumps({f"{millions:g} million words": result}), flush=True)
            add_results("text-sizes", {}, {f"{millions:g} million words": result})


if __name__ == "__main__":
    main()
