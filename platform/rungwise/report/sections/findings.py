"""Verdicts, and the sentences at the top of the page.

A verdict follows from intervals alone: if one over seeds contains 0, nothing is resolved, however
large its mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.summary import OF_A_TASK, CorpusSummary, source_blocks
from rungwise.evaluation.comparison.summary import PairedDifference
from rungwise.models.losses.objectives import Objective
from rungwise.pretraining.summary import PretrainSummary
from rungwise.report.formats import (
    compact,
    metric_name,
    number,
    points_interval,
    points_with_interval,
    with_article,
)
from rungwise.report.sections.variants import Comparison

# A loss over some thousand masked tokens is accurate to about 0.03 nats; three times that is real.
_HARDLY_NATS = 0.1
_MOST_LABELS = 4  # in a sentence


@dataclass(frozen=True)
class Verdict:
    """How the first of two variants compares with the second, and the sentence that says by how
    much. Differences are first minus second, so above 0 is good for the first.

    `over_seeds_only`: the interval that also covers the draw of test examples contains 0.
    """

    name: Literal["above", "below", "unresolved"]
    sentence: str
    over_seeds_only: bool = False

    @property
    def state(self) -> str:
        """`above`, `above over seeds only`, the same with `below`, or `unresolved`."""
        return f"{self.name} over seeds only" if self.over_seeds_only else self.name


def verdict(difference: PairedDifference, metric: str) -> Verdict:
    """The verdict on the difference of two variants over paired seeds, first minus second."""
    first, second, over_seeds = difference.first, difference.second, difference.seeds
    size = f"{points_with_interval(over_seeds)} points of test {metric_name(metric)}"
    if not (over_seeds.low > 0 or over_seeds.high < 0):  # NaN is neither
        return Verdict(
            "unresolved",
            f"Unresolved: {first} minus {second} is {size}. The interval contains 0, so with "
            f"{over_seeds.count} seeds this run cannot tell the two apart.",
        )
    name = "above" if over_seeds.low > 0 else "below"
    over_both = difference.bootstrap
    if over_both.low > 0 or over_both.high < 0:
        return Verdict(name, f"{first} is {name} {second}: {size}.")
    return Verdict(
        name,
        f"{first} is {name} {second} over seeds only: {size}. If test examples are resampled as "
        f"well, the interval is {points_interval(over_both)} and contains 0.",
        over_seeds_only=True,
    )


def sum_up(verdicts: Sequence[Verdict], first: str, second: str) -> str:
    """One sentence for the verdicts of several tasks."""
    parts = []
    for name, over_seeds_only in itertools.product(("above", "below"), (False, True)):
        count = sum((v.name, v.over_seeds_only) == (name, over_seeds_only) for v in verdicts)
        where = " over seeds only" if over_seeds_only else ""
        if count:
            parts.append(f"{first} is {name} {second}{where} on {count} of {len(verdicts)} tasks")
    if unresolved := sum(each.name == "unresolved" for each in verdicts):
        parts.append(f"{unresolved} of {len(verdicts)} unresolved")
    but = (
        " Over seeds only: the interval that also covers the choice of test examples contains 0."
        if any(each.over_seeds_only for each in verdicts)
        else ""
    )
    return f"{'; '.join(parts)}.{but}"


def describe_gain(loss: float, unigram_entropy: float) -> str:
    """Compare the loss with the unigram entropy, the loss of a guess without context."""
    gain = unigram_entropy - loss
    if gain < 0:
        return f"{-gain:.2f} nats above the unigram entropy, the loss of a guess without context"
    hardly = "only " if gain < _HARDLY_NATS else ""
    return f"{hardly}{gain:.2f} nats below the unigram entropy, the loss of a guess without context"


def describe_training(inputs: Mapping[str, Artifact]) -> str:
    """One sentence: which model, on which text, for how long."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    model, run = pretrain.model, pretrain.gradient
    name = model.page_name(model.objective(pretrain.objective))
    verb = "pretrained further, from earlier weights," if pretrain.began_with else "pretrained"
    steps = f"{verb} for {number(run.steps)} steps" if run else "fitted"
    return (
        f"{with_article(name)} with {compact(pretrain.parameters)} parameters "
        f"({model.describe()}) was {steps} on {compact(pretrain.tokens)} tokens, "
        f"{pretrain.epochs:.1f} passes over {describe_text(inputs['corpus'])}."
    )


def describe_text(corpus: Artifact) -> str:
    """The training text in words: how much, and from where."""
    summary = CorpusSummary.of(corpus)
    size = f"{number(summary.documents.train)} documents ({summary.amount(compact)})"
    kinds = {source["kind"] for source in source_blocks(corpus)}
    if kinds == {OF_A_TASK}:
        return f"{size} of the {OF_A_TASK}"
    labels = list(summary.labels)
    names = ", ".join(labels[:_MOST_LABELS])
    more = f" and {len(labels) - _MOST_LABELS} more" if len(labels) > _MOST_LABELS else ""
    source = "Python package documentation" if kinds == {"pydocs"} else "text"
    return f"{size} of {source}: {names}{more}"


def describe_comparison(comparison: Comparison) -> str:
    """One or two sentences: the tasks, the variants and the seeds."""
    (name, *others), tasks = comparison.variants, comparison.tasks
    seeds = len(tasks[0].evaluation.seeds)
    beside = f", next to {_join_names(others)}" if others else ""
    start = f"It was then fine-tuned as the variant {name}{beside}, with {seeds} seeds each, "
    if len(tasks) == 1:
        examples = number(tasks[0].evaluation.examples.train)
        return (
            f"{start}on the task {tasks[0].name} ({tasks[0].task.info.goal}), with "
            f"{examples} labelled examples{_budgets(comparison)}."
        )
    names = _join_names([task.name for task in tasks])
    few = _budgets(comparison)
    labels = f", each with all its labelled examples{few}" if few else ""
    return f"{start}on {len(tasks)} tasks: {names}{labels}."


def _budgets(comparison: Comparison) -> str:
    counts = sorted(
        {
            evaluation.examples.train
            for task in comparison.tasks
            for evaluation in task.by_budget
            if evaluation.budget is not None
        }
    )
    if not counts:
        return ""
    return f" and with {_join_names([number(count) for count in counts])} of them"


def _join_names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def headline(
    inputs: Mapping[str, Artifact], objective: Objective, comparison: Comparison | None = None
) -> str:
    """The line shown in the terminal: the verdict, or else a score, or else the loss."""
    if comparison is None:
        pretrain, tokens = PretrainSummary.of(inputs["pretrain"]), objective.tokens
        loss = pretrain.final[tokens.loss_key]
        if not objective.predicts_text:
            return f"{tokens.name.lower()} loss {loss:.3f} a {tokens.unit}"
        return f"validation {tokens.key} {loss:.3f} (unigram {pretrain.unigram_entropy:.2f})"
    if not comparison.paired_tasks:
        task, *others = comparison.tasks
        more = f"; {len(others)} more task{'s' * (len(others) > 1)}" if others else ""
        return f"{task.name}: {task.evaluation.headline}{more}"
    task, *others = comparison.paired_tasks
    difference = task.against_first[0]
    first, second, gap = difference.first, difference.second, difference.seeds
    points = f"{100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    judgement = verdict(difference, task.metric)
    where = " over seeds only" if judgement.over_seeds_only else ""
    line = (
        f"{task.name}: {first} against {second} unresolved, {points}"
        if judgement.name == "unresolved"
        else f"{task.name}: {first} {judgement.name} {second}{where} by {points}"
    )
    if not others:
        return f"{line}, {gap.count} seeds"
    names = [verdict(each.against_first[0], each.metric).name for each in comparison.paired_tasks]
    resolved = sum(name != "unresolved" for name in names)
    return f"{line}; {resolved} of {len(names)} tasks resolved"
