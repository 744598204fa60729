"""Whether advice from a small ladder is good: fifteen labelled sets, eleven rungs, rivals.

    python -m benchmarks.advice --root /tmp/advice        some two hours of a core
    python -m benchmarks.advice --root /tmp/advice --rungs ppmi,word2vec,glove
    python -m benchmarks.advice --root /tmp/advice --cost     pretrains alone, for the cost

The recipe beside this file trains every rung in full, and on a sixteenth too: of their steps those
that learn by gradient, of the text word vectors. Both are fine-tuned on every set, twice. The rule,
fixed before anything was run: take what has the best mean score on validation, rivals without
pretraining included, among the small rungs; of equals, the cheapest. A rung that was taken is then
trained in full.

The advice is good if the test score of what was taken is within one point of the best test score
of all rungs in full and all rivals. Its cost is that of all small pretrainings and of the one in
full that was taken; the ladder's is that of all in full. Fine-tuning is not counted, since it costs
the same for both. Beside it stands the advice after the ladder, by the same rule among the rungs
in full, and two rules that need no ladder: always the largest network, always the best rival.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.common import print_rows, write_results
from benchmarks.texts import real_data
from rungwise.core.configuration.config import validate
from rungwise.core.errors import UserError
from rungwise.core.stages.stage import Stage
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.pipeline.experiment import plan_experiment, resolve_variants
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import run as run_workflow
from rungwise.report.forecast import POINT
from rungwise.training.summary import PretrainSummary

Row = dict[str, Any]
RECIPE = Path(__file__).with_suffix(".yaml")
SHARE = 16  # the small rungs have a sixteenth of the steps, or of the text
SMALL = "_small"
LARGEST = "modern_bert"
LIMITS = {"train_examples": 1000, "max_validation_examples": 1000, "max_test_examples": 2000}


@dataclass(frozen=True)
class Candidate:
    """A rung, or a rival, on one set: mean scores and core-seconds of pretraining."""

    name: str
    validation: float
    test: float
    seconds: float
    is_rival: bool = False


def make_recipe(root: str, rungs: Sequence[str] = ()) -> Recipe:
    """The recipe with these rungs, by default all. Raises UserError without the folder of real
    data."""
    data = real_data()
    if data is None:
        raise UserError("RUNGWISE_DATA must name the folder of public data sets")
    blocks = yaml.safe_load(RECIPE.read_text().replace("data/", f"{data}/"))
    blocks["root"] = root
    variants = {name: blocks["variants"][name] for name in rungs or blocks["variants"]}
    blocks["variants"] = dict(variants)
    for name, variant in variants.items():
        pretrain = variant.get("pretrain", {})
        if steps := pretrain.get("steps"):
            short = dict(pretrain, steps=steps // SHARE, validation_every_steps=steps // SHARE)
            short["optimizer"] = with_warmup(pretrain["optimizer"])
            blocks["variants"][name + SMALL] = {**variant, "pretrain": short}
        else:
            blocks["variants"][name + SMALL] = {**variant, "text_share": 1 / SHARE}
    for task in blocks["tasks"].values():
        task["data"] = LIMITS | task["data"]
    return validate(Recipe, blocks)


def with_warmup(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    schedule = dict(optimizer["schedule"])
    schedule["warmup_steps"] = max(1, schedule["warmup_steps"] // SHARE)
    return {**optimizer, "schedule": schedule}


def list_stages(recipe: Recipe) -> list[Stage]:
    return list(plan_experiment(recipe, resolve_variants(recipe)).stages.values())


def list_pretrainings(recipe: Recipe) -> list[Stage]:
    """The stages that pretrain, and what they need."""
    needed: dict[str, Stage] = {}

    def add(stage: Stage) -> None:
        for source in stage.inputs.values():
            add(source)
        needed[stage.display_name] = stage

    for stage in list_stages(recipe):
        if stage.name == "pretrain":
            add(stage)
    return list(needed.values())


def read_candidates(evaluation: EvaluateSummary, seconds: Mapping[str, float]) -> list[Candidate]:
    rungs = [
        Candidate(
            name,
            fmean(evaluation.scores(name, "validation")),
            fmean(evaluation.scores(name)),
            seconds[variant.pretraining.fingerprint] if variant.pretraining else 0.0,
        )
        for name, variant in evaluation.variants.items()
    ]
    metric = evaluation.metric
    return rungs + [
        Candidate(name, rival.validation[metric], rival.test[metric], rival.seconds, True)
        for name, rival in evaluation.rivals.items()
    ]


def judge(candidates: Sequence[Candidate]) -> Row:
    """The test score of what each rule takes, and the best there is."""
    by_name = {each.name: each for each in candidates}
    small = [each for each in candidates if each.is_rival or each.name.endswith(SMALL)]
    whole = [each for each in candidates if not each.name.endswith(SMALL)]
    rivals = [each for each in whole if each.is_rival]

    def take(some: Sequence[Candidate]) -> Candidate:
        best = max(some, key=lambda each: (each.validation, -each.seconds))
        return by_name[best.name.removesuffix(SMALL)]

    ladder = sum(each.seconds for each in whole)
    advice = take(small)
    cost = sum(each.seconds for each in small)
    cost += advice.seconds if advice.name + SMALL in by_name else 0.0
    best = max(whole, key=lambda each: each.test)
    return {
        "best": best.name,
        "best_score": best.test,
        "advice": advice.name,
        "advice_score": advice.test,
        "cost": cost / ladder,
        "after": take(whole).name,
        "after_score": take(whole).test,
        "after_cost": take(whole).seconds / ladder,
        "largest_score": by_name[LARGEST].test if LARGEST in by_name else None,
        "rival_score": take(rivals).test,
    }


def summarize(rows: Sequence[Row]) -> dict[str, float]:
    """By rule, the share of sets on which what it takes is within one point of the best."""

    def count(rule: str) -> float:
        return fmean(row["best_score"] - row[f"{rule}_score"] <= POINT for row in rows)

    rules = [
        r for r in ("advice", "after", "largest", "rival") if rows[0][f"{r}_score"] is not None
    ]
    return {rule: count(rule) for rule in rules} | {
        "largest cost of the advice": max(row["cost"] for row in rows),
        "mean cost of the advice": fmean(row["cost"] for row in rows),
    }


def describe(row: Row) -> str:
    return (
        f"{row['metric']:14}best {row['best']} {row['best_score']:.3f}, advice {row['advice']} "
        f"{row['advice_score']:.3f} at {row['cost']:.1%}, after the ladder {row['after']} "
        f"{row['after_score']:.3f}, rival {row['rival_score']:.3f}"
    )


def print_cost(seconds: Mapping[str, float]) -> None:
    small = sum(value for title, value in seconds.items() if title.endswith(SMALL))
    print_rows(
        "of each pretraining", [(title, f"{value:.0f} s") for title, value in seconds.items()]
    )
    print(f"small ladder: {small / (sum(seconds.values()) - small):.1%} of the whole one")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", required=True, help="folder for what is built")
    help_text = "with commas; by default all"
    parser.add_argument("--rungs", type=lambda text: text.split(","), default=[], help=help_text)
    help_text = "stop after pretraining, and print what a small ladder costs beside a whole one"
    parser.add_argument("--cost", action="store_true", help=help_text)
    options = parser.parse_args(arguments)
    recipe = make_recipe(options.root, options.rungs)
    artifacts = run_workflow(list_pretrainings if options.cost else list_stages, recipe).artifacts
    pretrainings = {title: each for title, each in artifacts.items() if each.stage == "pretrain"}
    if options.cost:
        print_cost(
            {title: PretrainSummary.of(each).seconds for title, each in pretrainings.items()}
        )
        return
    seconds = {each.fingerprint: PretrainSummary.of(each).seconds for each in pretrainings.values()}
    rows = [
        {"set": (summary := EvaluateSummary.of(each)).task, "metric": summary.metric}
        | judge(read_candidates(summary, seconds))
        for each in artifacts.values()
        if each.stage == "evaluate"
    ]
    summary = summarize(rows)
    print_rows("of each set", [(row["set"], describe(row)) for row in rows])
    print_rows(
        "sets within one point of the best",
        [(name, f"{share:.0%}") for name, share in summary.items()],
    )
    write_results("advice", {"sets": rows, "summary": summary})


if __name__ == "__main__":
    main()
