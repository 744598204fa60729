"""What a model learns from one text, by objective, masks and optimizer: at equal operations, and at
equal seconds of this machine.

    python -m benchmarks.learning --quick        two minutes of a core, to see that it works
    python -m benchmarks.learning --threads 1 --rates 1e-3 --tunings 3 pretrain.steps=600
                                                 every arm, three pretraining seeds: about an hour
                                                 of a core
    python -m benchmarks.learning                the same with the recipe's steps: a night

Text, tokenizer, model, batch, budget and task are those of a recipe, by default the quickstart's;
the budget is the operations of its `pretrain.steps`, which an override changes. Every arm is
pretrained with each seed, then fine-tuned on the task with several seeds at each of several rates;
the rate is chosen by the mean validation score of all its runs. A pretraining is one value:
intervals are over pretraining seeds, and differences from the first arm are of pairs with the same
seed. `--seconds` adds runs whose steps take as many seconds as those of the first arm. Steps to a
fixed loss compare optimizers: the loss is that of AdamW, at the best of its rates, after all its
steps. Muon's curve tells when it is there with the schedule of a run as long; `masked_half`, whose
schedule ends after half of the steps, tells whether those are enough.

The file of the day in benchmarks/results is written after each run, and the same command goes on
where it was stopped. Every arm has its first seed before one has its second.

Instances are built on Ray, once, below the recipe's root; training is the platform's loop in this
process, with `--threads`.
"""

import argparse
import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import results_path
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage, Title
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.statistics import Estimate, estimate, paired_difference
from rungwise.finetune import evaluate, finetune, load_data
from rungwise.instances.summary import INSTANCES, InstancesSummary, read_kind
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import Graph, instances_stages
from rungwise.pipeline.workflow import load_recipe
from rungwise.pipeline.workflow import run as run_workflow
from rungwise.tasks.config import TASK
from rungwise.training.config import GradientFit
from rungwise.training.fit_config import PretrainStageConfig, require_gradient
from rungwise.training.loop import uses_bfloat16
from rungwise.training.parallel import Group, Worker
from rungwise.training.ray.gradient import RunOutcome, plan_run, pretrain, summarise
from rungwise.training.summary import PretrainSummary

VALIDATIONS = 20  # of a run, for the steps to a loss


@dataclass(frozen=True)
class Effort:
    """How much is run: which share of the operations, rates of fine-tuning, fine-tunings of a
    pretraining at each, and rows of a validation."""

    scale: float = 1.0
    rates: tuple[float, ...] = (1e-3, 3e-3)
    tunings: int = 5
    held_out: int = 256


QUICK = Effort(0.02, (3e-3,), 1, 32)


@dataclass(frozen=True)
class Step:
    """A run of pretraining; `rows` are keys of the instances, `share` is its part of the budget."""

    objective: str | None = None
    rows: dict[str, Any] = field(default_factory=dict[str, Any])
    share: float = 1.0


@dataclass(frozen=True)
class Arm:
    """Runs of pretraining, each from the weights of the one before."""

    steps: tuple[Step, ...]
    optimizer: dict[str, Any] = field(default_factory=dict[str, Any])  # keys that differ


def _masked(share: float = 1.0, **masking: Any) -> Step:
    return Step("mlm", {"kind": "masked_blocks", "masking": {"rate": 0.3} | masking}, share)


def _causal(share: float = 1.0) -> Step:
    return Step("left_to_right", {"kind": "causal"}, share)


# As ELECTRA: 15 % of the tokens, each hidden.
_ALL_HIDDEN = {"masking": {"mask_share": 1.0, "random_share": 0.0}}


def _hybrid(**keys: float) -> Step:
    return Step("causal_and_masked", {"kind": "causal_and_masked", "masking": {"rate": 0.3}} | keys)


def _adamw(rate: float) -> dict[str, Any]:
    return {"kind": "adamw", "learning_rate": rate}


# The first is what the others are compared with.
ARMS: dict[str, Arm] = {
    "masked": Arm((_masked(),)),
    "masked_15": Arm((_masked(rate=0.15),)),
    "masked_40": Arm((_masked(rate=0.4, max_predictions=26),)),
    "causal": Arm((_causal(),)),
    "causal_then_masked": Arm((_causal(0.5), _masked(0.5))),
    "mostly_causal_then_masked": Arm((_causal(0.75), _masked(0.25))),
    "masked_then_causal": Arm((_masked(0.5), _causal(0.5))),
    "replaced_tokens": Arm((Step("replaced_tokens", {"kind": "masked_blocks"} | _ALL_HIDDEN),)),
    "hybrid": Arm((_hybrid(causal_share=0.5),)),
    "masked_half": Arm((_masked(0.5),)),
    "adamw_1e-3": Arm((_masked(),), _adamw(1e-3)),
    "adamw_2e-3": Arm((_masked(),), _adamw(2e-3)),
    "adamw_4e-3": Arm((_masked(),), _adamw(4e-3)),
}


@dataclass(frozen=True)
class Bench:
    """What the arms have in common."""

    recipe: Recipe
    rows: dict[str, Artifact]  # instances, by the fingerprint of their config
    task: Artifact
    tokenizer: Artifact
    operations: float  # of a run
    folder: Path  # what is trained
    effort: Effort

    def instances(self, step: Step) -> Artifact:
        return self.rows[_key(self.recipe, step)]


def _key(recipe: Recipe, step: Step) -> str:
    return fingerprint(_of_step(recipe, step, {}).model_dump(mode="json")["instances"])


def _of_step(recipe: Recipe, step: Step, pretrain: dict[str, Any]) -> Recipe:
    """The recipe with a step's instances and objective, and other keys of `pretrain`."""
    assert recipe.instances
    rows = {"sequence_length": recipe.instances.length, "seed": recipe.instances.seed} | step.rows
    changes = {"instances": rows, "pretrain.objective": step.objective}
    return recipe.with_changes(changes | {f"pretrain.{k}": v for k, v in pretrain.items()}, "arm")


def prepare(recipe: Recipe, arms: Sequence[Arm], folder: Path, effort: Effort) -> Bench:
    """Build what is read, and find the operations of the recipe's own run."""

    def stages(first: dict[str, Stage]) -> dict[str, Stage]:
        (entry,) = recipe.tasks.values()
        needed = {**first, "task": TASK.stage(entry.data, {"corpus": first["corpus"]})}
        for step in (step for arm in arms for step in arm.steps):
            config = _of_step(recipe, step, {}).instances
            assert config
            needed[_key(recipe, step)] = INSTANCES.stage(config, {"tokens": first["tokens"]})
        return needed

    built = build(recipe, stages)
    fit = find_fit(recipe)
    operations = step_operations(fit, built["instances"]) * fit.pretrain.steps
    return Bench(recipe, built, built["task"], built["tokenizer"], operations, folder, effort)


def build(
    recipe: Recipe, stages: Callable[[dict[str, Stage]], dict[str, Stage]]
) -> dict[str, Artifact]:
    """Build stages by name, given those of the instances."""
    graph, names = Graph(), dict[str, str]()

    def list_stages(recipe: Recipe) -> list[Stage]:
        first = {
            name: graph.add(stage, Title(name)) for name, stage in instances_stages(recipe).items()
        }
        for name, stage in stages(first).items():
            names[name] = graph.add(stage, Title(stage.name, variant=name)).display_name
        return list(graph.stages.values())

    artifacts = run_workflow(list_stages, recipe).artifacts
    return {name: artifacts[title] for name, title in names.items()}


def find_fit(recipe: Recipe) -> GradientFit:
    assert recipe.model
    assert recipe.pretrain
    config = PretrainStageConfig(model=recipe.model, pretrain=recipe.pretrain)
    return require_gradient(config, "arms to compare")


def step_operations(fit: GradientFit, instances: Artifact) -> float:
    """The operations of a step, by the rule of `Family.flops_per_token`."""
    summary, length = InstancesSummary.of(instances), fit.model.max_length
    files = summary.split_files("train")
    read = sum(row.tokens for row in files) / sum(row.instances for row in files)
    rows = read_kind(instances)
    each = fit.model.flops_per_token(
        summary.vocab_size, rows.length, fit.objective, rows.masked_per_row
    )
    return each * fit.pretrain.global_batch_size * min(read, rows.length, length or rows.length)


def train(bench: Bench, name: str, arm: Arm, seed: int, scale: float) -> dict[str, Any]:
    """Pretrain an arm with a share `scale` of the operations, and fine-tune it."""
    before: Artifact | None = None
    facts: dict[str, Any] = {"operations": 0.0, "seconds": 0.0, "steps": [], "validation": []}
    with tempfile.TemporaryDirectory(dir=bench.folder, prefix=f"{name}-{seed}-") as folder:
        for number, step in enumerate(arm.steps):
            rows = bench.instances(step)
            optimizer = {f"optimizer.{key}": value for key, value in arm.optimizer.items()}
            fit = find_fit(_of_step(bench.recipe, step, {**optimizer, "seed": seed}))
            share = scale * step.share * bench.operations
            steps = max(8, round(share / step_operations(fit, rows)))
            more = {
                "steps": steps,
                "validation_every_steps": max(1, steps // VALIDATIONS),
                "validation_instances": bench.effort.held_out,
            }
            fit = find_fit(_of_step(bench.recipe, step, {**optimizer, "seed": seed, **more}))
            before = pretrain_here(fit, rows, Path(folder) / str(number), before)
            summary, loss_key = PretrainSummary.of(before), fit.objective.tokens.loss_key
            assert summary.gradient
            facts["operations"] += summary.flops or 0.0
            facts["seconds"] += summary.seconds
            facts["steps"].append(summary.gradient.steps)
            facts["validation"] += [
                {"step": row["step"], "loss": row[loss_key]} for row in summary.gradient.validation
            ]
        assert before is not None
        began = time.monotonic()
        facts["scores"] = _finetune(bench, before)
        facts["finetune_seconds"] = time.monotonic() - began
    return facts


def pretrain_here(
    fit: GradientFit, rows: Artifact, folder: Path, initial: Artifact | None
) -> Artifact:
    """A run of the loop in this process."""
    compute = ComputeConfig(num_workers=1, checkpoint_every_steps=10**9)
    inputs = {"instances": rows} | ({} if initial is None else {"initial": initial})
    run = plan_run(fit, inputs, Folder.at(folder), compute)
    group = Group.current(torch.device("cpu"))
    progress, costs = pretrain(fit, run, Worker(group, compute))
    bfloat16 = uses_bfloat16(fit.pretrain.precision, group.device)
    outcome = RunOutcome(progress, costs, "cpu", bfloat16)
    summary = summarise(fit, run, outcome, compute)
    made = {"config": fit.blocks(), "summary": summary.model_dump(mode="json"), "label": "arm"}
    return Artifact("pretrain", fingerprint(made), Folder.at(folder), made)


def _finetune(bench: Bench, pretrained: Artifact) -> dict[str, list[list[float]]]:
    """The main metric on validation and test, by rate and then by seed."""
    assert bench.recipe.finetune
    scores: dict[str, list[list[float]]] = {"validation": [], "test": []}
    for rate in bench.effort.rates:
        config = bench.recipe.finetune.model_copy(update={"learning_rate": rate})
        data = load_data(bench.task, bench.tokenizer, pretrained, config)
        rows: list[tuple[float, float]] = []
        for seed in range(bench.effort.tunings):
            model = finetune(config, data, seed)
            held_out = evaluate(model, data, "validation", calibrate=True).metrics[data.info.metric]
            rows.append((held_out, evaluate(model, data, "test").metrics[data.info.metric]))
        for split, values in zip(scores, zip(*rows, strict=True), strict=True):
            scores[split].append(list(values))
    return scores


def values_of(runs: Sequence[dict[str, Any]]) -> list[float]:
    """The test score of each pretraining, at the rate that is best on validation over all."""
    held_out = np.array([run["scores"]["validation"] for run in runs])  # runs, rates, tunings
    best = int(held_out.mean(axis=(0, 2)).argmax())
    return [fmean(run["scores"]["test"][best]) for run in runs]


def steps_to(runs: Sequence[dict[str, Any]], loss: float) -> float | None:
    """The mean over runs of the first step at which the loss is at most `loss`, between validations
    by a straight line; None if a run does not reach it."""
    reached: list[float] = []
    for run in runs:
        rows = run["validation"]
        after = next((n for n, row in enumerate(rows) if row["loss"] <= loss), None)
        if not after:
            return None
        (x0, y0), (x1, y1) = ((row["step"], row["loss"]) for row in rows[after - 1 : after + 1])
        reached.append(x0 + (x1 - x0) * (y0 - loss) / (y0 - y1))
    return fmean(reached)


def report(results: dict[str, Any], console: Console) -> None:
    """Print the table of each budget, and the steps to a fixed loss."""
    for budget in ("operations", "seconds"):
        by_arm = results.get(budget, {})
        complete = {name: list(runs.values()) for name, runs in by_arm.items() if runs}
        if not complete:
            continue
        table = Table(title=f"equal {budget}", box=None, pad_edge=False)
        first = next(iter(complete))
        for column in ("arm", "steps", "1e12 operations", "seconds", "test score", f"- {first}"):
            table.add_column(column, justify="left" if column == "arm" else "right")
        for name, runs in complete.items():
            values = values_of(runs)
            seeds = [seed for seed in by_arm[name] if seed in by_arm[first]]
            ours, theirs = (
                dict(zip(by_arm[each], values_of(complete[each]), strict=True))
                for each in (name, first)
            )
            pairs = [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
            table.add_row(
                name,
                " + ".join(map(str, runs[0]["steps"])),
                f"{fmean(run['operations'] for run in runs) / 1e12:.2f}",
                f"{fmean(run['seconds'] for run in runs):.0f}",
                _percent(estimate(values, (0.0, 1.0))),
                "" if name == first or not seeds else _percent(paired_difference(*pairs)),
            )
        console.print(table)
    runs = {name: list(each.values()) for name, each in results["operations"].items() if each}
    adamw = {name: each for name, each in runs.items() if name.startswith("adamw")}
    if adamw and "masked" in runs:
        losses = {
            name: fmean(run["validation"][-1]["loss"] for run in each)
            for name, each in adamw.items()
        }
        best = min(losses, key=losses.__getitem__)
        whole, muon = adamw[best][0]["steps"][0], steps_to(runs["masked"], losses[best])
        ratio = "not reached" if muon is None else f"{muon:.0f} steps, {muon / whole:.2f} of them"
        console.print(f"loss {losses[best]:.3f} of {best} after {whole} steps: Muon {ratio}")
        for half in runs.get("masked_half", [])[:1]:
            loss = fmean(run["validation"][-1]["loss"] for run in runs["masked_half"])
            console.print(f"Muon ends at {loss:.3f} if it is given {half['steps'][0]} steps")


def _percent(value: Estimate) -> str:
    mean, low, high = (100 * each for each in (value.mean, value.low, value.high))
    return f"{mean:.1f}" if value.count == 1 else f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--only", help="names of arms, with commas; the first is compared with")
    parser.add_argument("--seeds", default="0,1,2", help="of pretraining")
    parser.add_argument("--seconds", action="store_true", help="also at equal seconds")
    parser.add_argument("--rates", default="1e-3,3e-3", help="of fine-tuning, with commas")
    parser.add_argument("--tunings", type=int, default=5, help="of a pretraining, at each rate")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after these")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the steps, one seed")
    parser.add_argument("overrides", nargs="*", help="key=value of the recipe")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = load_recipe(options.recipe, options.overrides)
    names = options.only.split(",") if options.only else [*ARMS]
    if unknown := [name for name in names if name not in ARMS]:
        parser.error(f"--only: there is no arm {unknown[0]}; there are {', '.join(ARMS)}")
    arms = {name: ARMS[name] for name in names}
    effort = Effort(rates=tuple(map(float, options.rates.split(","))), tunings=options.tunings)
    effort = QUICK if options.quick else effort
    seeds = ["0"] if options.quick else options.seeds.split(",")
    file = results_path("learning-quick" if options.quick else "learning")
    settings = {
        "recipe": fingerprint(recipe.model_dump(mode="json")),
        "overrides": options.overrides,
        "effort": json.loads(json.dumps(asdict(effort))),
    }
    empty: dict[str, Any] = {"settings": settings, "operations": {}, "seconds": {}}
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else empty
    if results.get("settings") != settings:
        parser.error(f"{file} has runs of other settings, {results.get('settings')}: move it away")
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="rungwise-learning-") as folder:
        bench = prepare(recipe, list(arms.values()), Path(folder), effort)
        budgets = ("operations", "seconds") if options.seconds else ("operations",)
        for budget, seed, name in itertools.product(budgets, seeds, arms):
            runs = results[budget].setdefault(name, {})
            if seed in runs or time.monotonic() > end:
                continue
            part = effort.scale
            if budget == "seconds":
                counted = results["operations"]
                part *= _seconds(counted, next(iter(arms))) / _seconds(counted, name)
            runs[seed] = train(bench, name, arms[name], int(seed), part)
            file.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{budget} {name} seed {seed}: {values_of([runs[seed]])[0]:.3f}", flush=True)
    report(results, Console())


def _seconds(by_arm: dict[str, Any], name: str) -> float:
    return fmean(run["seconds"] for run in by_arm[name].values())


if __name__ == "__main__":
    main()
