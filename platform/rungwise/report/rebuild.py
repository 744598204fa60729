"""The recipe that builds the stages of a page again, put together from their records.

So it says what was built, and not what a file says now. Variants and tasks become what differs from
the first variant and the first task:

    a variant's own value of a key      the same on every task, and not that of the others
    a task's own value of a key        what the variants that have no value of their own have on it

Steps of pretraining that were matched in cost to the first variant's stand as the numbers they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rungwise.core.artifact import Artifact
from rungwise.report.compared import input_of, of_stage
from rungwise.report.origin import root_of

_INITIAL = "initial"  # what a step of continued pretraining calls the one it goes on from
Block = dict[str, Any]


def recipe(inputs: Mapping[str, Artifact], report: Mapping[str, Any]) -> Block:
    """The blocks of a recipe that gives the same fingerprints. `report` is this stage's config."""
    last = list(inputs.values())[-1]
    blocks: Block = {"name": last.label, "root": root_of(last)}
    evaluated = {
        found.summary["task"]: found
        for found in of_stage(inputs, "evaluate").values()
        if found.summary["budget"] is None
    }
    if not evaluated:
        return blocks | _pretraining(inputs["pretrain"], inputs) | {"report": dict(report)}
    any_task = next(iter(evaluated.values()))
    variants = list(any_task.record["config"]["variants"])
    trained = {name: _of_variant(any_task, name, inputs) for name in variants}
    blocks |= trained[variants[0]]
    finetune = {task: found.record["config"]["variants"] for task, found in evaluated.items()}
    common, of_task, of_variant = _factored(finetune)
    columns = inputs["table"].record["config"]["columns"] if "table" in inputs else {}
    blocks["tasks"] = {
        task: {
            "data": _read(found, "task", inputs).record["config"],
            "finetune": of_task[task],
            "published": columns.get(task),
        }
        for task, found in evaluated.items()
    }
    blocks["variants"] = {
        name: changes(trained[variants[0]], trained[name])
        | {f"finetune.{key}": value for key, value in of_variant[name].items()}
        for name in variants
    }
    blocks["finetune"] = common
    blocks["evaluate"] = any_task.record["config"]["evaluate"]
    for title, found in of_stage(inputs, "register").items():
        task = title.partition("/")[2]
        name = found.record["config"]["name"].removesuffix(f"-{task.replace('.', '-')}")
        blocks["registry"] = {**found.record["config"], "name": name}
    return blocks | {"report": dict(report)}


def changes(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> Block:
    """The dotted keys that make `new` of `old`. Blocks with other keys are replaced whole, and so
    are those whose keys have dots themselves, as the space of a sweep."""
    found: Block = {}
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if (
            isinstance(before, dict)
            and isinstance(after, dict)
            and before.keys() == after.keys()
            and not any("." in name for name in before)
        ):
            found |= changes(before, after, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = after
    return found


def _of_variant(evaluated: Artifact, name: str, inputs: Mapping[str, Artifact]) -> Block:
    """What a variant may change but for fine-tuning: its pretraining, further steps and sweep."""
    steps: dict[str, Block] = {}
    # Of several that the sweep tried, any: what it varied is in its space.
    trained = input_of(evaluated, f"pretrain/{name}@0", inputs) or _read(
        evaluated, f"pretrain/{name}", inputs
    )
    while (before := input_of(trained, _INITIAL, inputs)) is not None:
        step = _title(trained, inputs).split("/")[1]
        steps[step] = _further(trained, inputs)
        trained = before
    sweep = input_of(evaluated, f"sweep/{name}", inputs)
    return {
        **_pretraining(trained, inputs),
        "continued_pretraining": dict(reversed(steps.items())),
        "continue_with": list(reversed(steps)),
        "sweep": None if sweep is None else sweep.record["config"]["sweep"],
    }


def _pretraining(trained: Artifact, inputs: Mapping[str, Artifact]) -> Block:
    rows = _read(trained, "instances", inputs)
    longer = input_of(trained, "longer_instances", inputs)
    return {
        "corpus": _read(rows, "corpus", inputs).record["config"],
        "tokenizer": _read(rows, "tokenizer", inputs).record["config"],
        "instances": rows.record["config"],
        "longer_instances": None if longer is None else longer.record["config"],
        **trained.record["config"],  # model, pretrain
    }


def _further(trained: Artifact, inputs: Mapping[str, Artifact]) -> Block:
    rows = _read(trained, "instances", inputs)
    text = _read(rows, "corpus", inputs)
    return {
        text.stage: text.record["config"],  # corpus or task_text
        "instances": rows.record["config"],
        "pretrain": trained.record["config"]["pretrain"],
    }


def _factored(
    finetune: Mapping[str, Mapping[str, Block]],
) -> tuple[Block, dict[str, Block], dict[str, Block]]:
    """{task: {variant: block}} as a common block, and what tasks and variants change of it.

    A variant's own value holds on every task. So a variant whose value changes with the task has
    none of its own, and shows those of the tasks; if no variant does, the first stands for it.
    """
    tasks, first = list(finetune), next(iter(finetune.values()))
    common: Block = {}
    of_task: dict[str, Block] = {task: {} for task in tasks}
    of_variant: dict[str, Block] = {name: {} for name in first}
    for key in next(iter(first.values())):
        values = {name: [finetune[task][name][key] for task in tasks] for name in first}
        plain = next(
            (each for each in values.values() if any(value != each[0] for value in each)),
            next(iter(values.values())),
        )
        common[key] = plain[0]
        for task, value in zip(tasks, plain, strict=True):
            if value != plain[0]:
                of_task[task][key] = value
        for name, each in values.items():
            if each != plain:
                of_variant[name][key] = each[0]
    return common, of_task, of_variant


def _read(artifact: Artifact, name: str, inputs: Mapping[str, Artifact]) -> Artifact:
    found = input_of(artifact, name, inputs)
    assert found is not None, f"{artifact.stage} has {name} before it"
    return found


def _title(artifact: Artifact, inputs: Mapping[str, Artifact]) -> str:
    return next(title for title, a in inputs.items() if a.fingerprint == artifact.fingerprint)
