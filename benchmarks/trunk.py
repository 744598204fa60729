"""What a decay from a shared trunk costs in bits per byte, against a run with its own schedule.

    python -m benchmarks.trunk --root /tmp/curves        a quarter of an hour of a core

A decay from a trunk equals, bit for bit, a run of its own with the same warm-up and decay. What
it costs is the plateau: a run that knows its end can let its rate fall all the way. Each schedule
has the peak and the steps of the others, and two seeds.
"""

import argparse
from collections.abc import Sequence
from statistics import fmean

from benchmarks.common import add_results, print_rows
from benchmarks.forecast_points import RUNGS, WARMUP, make_recipe
from rungwise.core.stages.stage import Stage
from rungwise.evaluation.suites.items import MeasureSummary
from rungwise.pipeline.experiment import plan_experiment, resolve_variants
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.workflow import run as run_workflow

STEPS, SEEDS = 1024, 2  # half of those of a network on this text in forecast_points.py
KINDS = {"trunk": "warmup_stable_decay", "linear": "linear", "cosine": "cosine"}


def measure_schedules(rung: str, root: str) -> dict[str, list[float]]:
    """The bits per byte of a rung with each schedule, by seed."""
    variants = {
        name: {
            **RUNGS[rung],
            "pretrain.steps": STEPS,
            "pretrain.optimizer.schedule": {
                "kind": kind,
                "warmup_steps": round(WARMUP * 2 * STEPS),
            },
            "pretraining_seeds": SEEDS,
        }
        for name, kind in KINDS.items()
    }
    recipe = make_recipe("docs", [rung], root).with_changes(
        {"variants": variants, "curve": None}, "trunk"
    )
    titles: dict[str, list[str]] = {}  # of the measurements of each schedule

    def stages(recipe: Recipe) -> list[Stage]:
        experiment = plan_experiment(recipe, resolve_variants(recipe))
        for name, measured in experiment.measured.items():
            titles[name] = [stage.display_name for stage in measured]
        return list(experiment.stages.values())

    artifacts = run_workflow(stages, recipe).artifacts
    bits: dict[str, list[float]] = {}
    for name, each in titles.items():
        scores = [MeasureSummary.of(artifacts[title]) for title in each]
        values = [score.value("perplexity", "bits_per_byte") for score in scores]
        bits[name] = [value.value for value in values if value is not None]
    return bits


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", required=True, help="folder for what is built")
    parser.add_argument("--rungs", default="gpt,lstm", help="with commas")
    options = parser.parse_args(arguments)
    for rung in options.rungs.split(","):
        bits = measure_schedules(rung, options.root)
        add_results("trunk", {"steps": STEPS}, {rung: bits})
        rows = [
            (name, f"{fmean(values):.3f} ({', '.join(f'{each:.3f}' for each in values)})")
            for name, values in bits.items()
        ]
        print_rows(f"{rung}, bits per byte after {STEPS} steps", rows)


if __name__ == "__main__":
    main()
