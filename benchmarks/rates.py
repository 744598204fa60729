"""Measure the rates by which `rungwise plan` estimates time: of the stages that are built below a
root, into platform/rungwise/pipeline/rates.yaml. The machine should have done nothing else.

    python benchmarks/rates.py ROOT finetune:quickstart ladder:ladder
"""

import statistics
import sys
from pathlib import Path

import numpy as np
import yaml

from rungwise.core.stages.artifact import Artifact
from rungwise.pipeline import estimate, workflow

_FIXED = 0.2  # the share of the shortest that does not grow with the work, where one is known
_ALIKE = 1.2  # a factor between kinds of a stage
Observation = tuple[float, float, float]  # units, seconds, bytes


def fit(observations: list[Observation], column: int) -> tuple[float, float]:
    """What no work takes, and what a unit takes besides; neither is negative."""
    units = np.array([each[0] for each in observations])
    values = np.array([each[column] for each in observations])
    if np.ptp(units) > 0.2 * units.max():
        slope, start = np.polyfit(units, values, 1)
        if slope > 0 and start >= 0:
            return float(start), float(slope)
    start = _FIXED * float(values.min())
    return start, float(np.sum(values - start) / np.sum(units))


def gather(root: str, places: list[str]) -> dict[str, list[Observation]]:
    """The work, the seconds and the bytes of each stage that was built, by key."""
    result: dict[str, list[Observation]] = {}
    for place in places:
        name, _, recipe_name = place.partition(":")
        recipe = workflow.load_recipe(recipe_name, [f"root={root}"])
        rows = workflow.plan(name, recipe)
        works = estimate.count_works(rows, recipe.compute)
        for row in rows:
            work = works[row.stage.display_name]
            if work and row.artifact:
                result.setdefault(work.key, []).append(observe(work, row.artifact))
    return result


def observe(work: estimate.Work, artifact: Artifact) -> Observation:
    """What a finished stage took, without the start of processes."""
    record = artifact.record
    size = sum(file["bytes"] for file in record["files"].values())
    return work.units, record["seconds"] - record["starting_seconds"], size


def main(root: str, *places: str) -> None:
    rates: dict[str, dict[str, float]] = {}
    for key, observations in sorted(gather(root, list(places)).items()):
        seconds, a_unit = fit(observations, 1)
        start, bytes_a_unit = fit(observations, 2)
        values = (seconds, a_unit, start, bytes_a_unit)
        names = ("seconds", "a_unit", "bytes", "bytes_a_unit")
        rates[key] = {n: float(f"{v:.3g}") for n, v in zip(names, values, strict=True)}
    for stage in sorted({key.partition("/")[0] for key in rates} - rates.keys()):
        kinds = {key: each for key, each in rates.items() if key.startswith(f"{stage}/")}
        some = next(iter(kinds.values()))
        typical = {n: statistics.median(each[n] for each in kinds.values()) for n in some}
        rates[stage] = typical
        for key, each in kinds.items():  # one about as fast as the others needs no line
            if 1 / _ALIKE < each["a_unit"] / typical["a_unit"] < _ALIKE:
                del rates[key]
    table = {"matmul_flops": float(f"{estimate.core_rate():.3g}"), "rates": rates}
    about = "# Seconds and bytes of work, on one core with this rate; by benchmarks/rates.py.\n"
    text = yaml.safe_dump(table, sort_keys=True, default_flow_style=None, width=200)
    Path(estimate.__file__).with_name("rates.yaml").write_text(about + text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
