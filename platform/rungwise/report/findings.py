"""Findings in words: verdicts, and the sentences on top of the page.

A verdict follows from an interval and from nothing else: an interval that holds 0 resolves nothing,
however large its middle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rungwise.core.artifact import Artifact
from rungwise.models.objectives import Objective
from rungwise.pretraining.pretrained import config_of
from rungwise.report.compared import Compared
from rungwise.report.formats import (
    compact,
    metric_name,
    number,
    points_interval,
    points_with_interval,
)

# A loss over some thousand masked tokens is known to about 0.03 nats; three times that is no noise.
_HARDLY_NATS = 0.1
_LABELS_NAMED = 4
_VERDICTS = ("above", "below", "unresolved")


@dataclass(frozen=True)
class Verdict:
    """How the first of two variants stands to the second, with the sentence that says by how much.

    `over_seeds_only` says that other test examples might undo it: the interval that covers them as
    well holds 0.
    """

    name: Literal["above", "below", "unresolved"]
    sentence: str
    over_seeds_only: bool = False


def verdict(difference: Mapping[str, Any], metric: str) -> Verdict:
    """From the difference of two variants over paired seeds, first minus second."""
    first, second, found = difference["first"], difference["second"], difference["seeds"]
    measured = f"{points_with_interval(found)} points of test {metric_name(metric)}"
    if found["low"] <= 0 <= found["high"]:
        return Verdict(
            "unresolved",
            f"Unresolved: {first} minus {second} is {measured}. The interval holds 0, so with "
            f"{found['count']} seeds this run cannot tell the two apart.",
        )
    name = "above" if found["low"] > 0 else "below"
    drawn = difference["bootstrap"]
    seeds_only = drawn["low"] <= 0 <= drawn["high"]
    but = (
        f" That is over seeds only: with other test examples drawn as well, the interval is "
        f"{points_interval(drawn)} and holds 0."
        if seeds_only
        else ""
    )
    return Verdict(name, f"{first} is {name} {second}: {measured}.{but}", seeds_only)


def summed_up(verdicts: Sequence[Verdict], first: str, second: str) -> str:
    """One sentence for the verdicts of several tasks."""
    count = {name: sum(each.name == name for each in verdicts) for name in _VERDICTS}
    parts = [
        f"{first} is {name} {second} on {count[name]} of {len(verdicts)} tasks"
        for name in ("above", "below")
        if count[name]
    ]
    if count["unresolved"]:
        parts.append(f"{count['unresolved']} of {len(verdicts)} unresolved")
    seeds_only = sum(each.over_seeds_only for each in verdicts)
    but = (
        f" Of these, {seeds_only} over seeds only: the interval that covers other test examples as "
        "well holds 0."
        if seeds_only
        else ""
    )
    return f"{'; '.join(parts)}.{but}"


def use_of_context(loss: float, unigram_entropy: float) -> str:
    """How the loss stands to a guess that knows the frequencies of tokens and no context."""
    gain = unigram_entropy - loss
    if gain < 0:
        return f"{-gain:.2f} nats above what a guess without context costs"
    if gain < _HARDLY_NATS:
        return f"only {gain:.2f} nats below what a guess without context costs"
    return f"{gain:.2f} nats below what a guess without context costs"


def what_was_trained(inputs: Mapping[str, Artifact]) -> str:
    """One sentence: which model, on which text, for how long."""
    pretrain, corpus = inputs["pretrain"].summary, inputs["corpus"]
    config = config_of(inputs["pretrain"])
    return (
        f"A {config.model.page_name(config.objective)} of {compact(pretrain['parameters'])} "
        f"parameters ({config.model.describe()}) was pretrained for "
        f"{number(pretrain['steps'])} steps on {compact(pretrain['tokens'])} tokens, "
        f"{pretrain['epochs']:.1f} passes over {what_text(corpus)}."
    )


def what_text(corpus: Artifact) -> str:
    """The training text in words: how much, and from where."""
    summary = corpus.summary
    labels = list(summary["labels"])
    kinds = {source["kind"] for source in corpus.record["config"]["sources"]}
    named = ", ".join(labels[:_LABELS_NAMED])
    more = f" and {len(labels) - _LABELS_NAMED} more" if len(labels) > _LABELS_NAMED else ""
    whence = "documentation of Python packages" if kinds == {"pydocs"} else "text"
    return (
        f"{number(summary['documents']['train'])} documents "
        f"({compact(summary['words']['train'])} words) of {whence}: {named}{more}"
    )


def what_was_compared(compared: Compared) -> str:
    """One or two sentences: the tasks, the variants and the seeds."""
    (name, *others), tasks = compared.variants, compared.tasks
    seeds = len(tasks[0].evaluated["seeds"])
    beside = f", next to {_listed(others)}" if others else ""
    first = f"As the variant {name} it was then fine-tuned{beside}, with {seeds} seeds each, "
    if len(tasks) == 1:
        examples = number(tasks[0].evaluated["examples"]["train"])
        return (
            f"{first}for the task {tasks[0].name}: {what_is_asked(tasks[0].task)}, learnt from "
            f"{examples} labelled examples{_budgets(compared)}."
        )
    names = _listed([task.name for task in tasks])
    few = _budgets(compared)
    labels = f", each with all its labelled examples{few}" if few else ""
    return f"{first}for {len(tasks)} tasks: {names}{labels}."


def what_is_asked(task: Mapping[str, Any]) -> str:
    """What a task wants of a model, in words."""
    labels, of = len(task["labels"]), "a pair of texts" if task["pair"] else "a text"
    match task["kind"]:
        case "classification":
            return f"one of {labels} labels for {of}"
        case "regression":
            return f"a number for {of}"
        case "tagging":
            return f"one of {labels} tags for each word"
        case "span":
            return "where in a context the answer to a question stands"
        case "choice":
            return "which of several options goes on"
        case kind:
            raise AssertionError(f"no kind of task {kind}")


def _budgets(compared: Compared) -> str:
    counts = sorted(
        {
            found["examples"]["train"]
            for task in compared.tasks
            for found in task.by_budget
            if found["budget"] is not None
        }
    )
    if not counts:
        return ""
    return f" and {_listed([number(count) for count in counts])} of them"


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def headline(
    inputs: Mapping[str, Artifact], objective: Objective, compared: Compared | None = None
) -> str:
    """The line of the terminal: the verdict, or where there is none a score or the loss."""
    if compared is None:
        final = inputs["pretrain"].summary["final"]
        tokens = objective.tokens
        entropy = inputs["instances"].summary["unigram_entropy"]
        return f"validation {tokens.key} {final[tokens.loss_key]:.3f} (unigram {entropy:.2f})"
    task, *others = compared.tasks
    if len(compared.variants) == 1:
        more = f"; {len(others)} more tasks" if others else ""
        return f"{task.name}: {task.evaluated['headline']}{more}"
    found = task.against_first[0]
    first, second, gap = found["first"], found["second"], found["seeds"]
    points = f"{100 * gap['mean']:+.1f} points [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
    name = verdict(found, task.metric).name
    line = (
        f"{task.name}: {first} against {second} unresolved, {points}"
        if name == "unresolved"
        else f"{task.name}: {first} {name} {second} by {points}"
    )
    if not others:
        return f"{line}, {gap['count']} seeds"
    names = [verdict(each.against_first[0], each.metric).name for each in compared.tasks]
    resolved = sum(name != "unresolved" for name in names)
    return f"{line}; {resolved} of {len(names)} tasks resolved"
