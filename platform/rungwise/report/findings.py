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
from rungwise.report.compared import Compared
from rungwise.report.formats import (
    compact,
    metric_name,
    number,
    points_interval,
    points_with_interval,
    with_article,
)

# A loss over some thousand masked tokens is accurate to about 0.03 nats; three times that is real.
_HARDLY_NATS = 0.1
_LABELS_NAMED = 4


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
    measured = f"{points_with_interval(over_seeds)} points of test {metric_name(metric)}"
    if over_seeds.low <= 0 <= over_seeds.high:
        return Verdict(
            "unresolved",
            f"Unresolved: {first} minus {second} is {measured}. The interval contains 0, so with "
            f"{over_seeds.count} seeds this run cannot tell the two apart.",
        )
    name = "above" if over_seeds.low > 0 else "below"
    drawn = difference.bootstrap
    seeds_only = drawn.low <= 0 <= drawn.high
    but = (
        f" If test examples are resampled as well, the interval is {points_interval(drawn)} and "
        "contains 0."
        if seeds_only
        else ""
    )
    where = " over seeds only" if seeds_only else ""
    return Verdict(name, f"{first} is {name} {second}{where}: {measured}.{but}", seeds_only)


def summed_up(verdicts: Sequence[Verdict], first: str, second: str) -> str:
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


def use_of_context(loss: float, unigram_entropy: float) -> str:
    """Compare the loss with the unigram entropy, the loss of a guess without context."""
    gain = unigram_entropy - loss
    if gain < 0:
        return f"{-gain:.2f} nats above the unigram entropy, the loss of a guess without context"
    hardly = "only " if gain < _HARDLY_NATS else ""
    return f"{hardly}{gain:.2f} nats below the unigram entropy, the loss of a guess without context"


def what_was_trained(inputs: Mapping[str, Artifact]) -> str:
    """One sentence: which model, on which text, for how long."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    model, run = pretrain.model, pretrain.gradient
    name = model.page_name(model.objective(pretrain.objective))
    how = "pretrained further, from earlier weights," if pretrain.began_with else "pretrained"
    steps = f"{how} for {number(run.steps)} steps" if run else "fitted"
    return (
        f"{with_article(name)} with {compact(pretrain.parameters)} parameters "
        f"({model.describe()}) was {steps} on {compact(pretrain.tokens)} tokens, "
        f"{pretrain.epochs:.1f} passes over {what_text(inputs['corpus'])}."
    )


def what_text(corpus: Artifact) -> str:
    """The training text in words: how much, and from where."""
    summary = CorpusSummary.of(corpus)
    size = f"{number(summary.documents.train)} documents ({summary.amount(compact)})"
    kinds = {source["kind"] for source in source_blocks(corpus)}
    if kinds == {OF_A_TASK}:
        return f"{size} of the {OF_A_TASK}"
    labels = list(summary.labels)
    named = ", ".join(labels[:_LABELS_NAMED])
    more = f" and {len(labels) - _LABELS_NAMED} more" if len(labels) > _LABELS_NAMED else ""
    whence = "Python package documentation" if kinds == {"pydocs"} else "text"
    return f"{size} of {whence}: {named}{more}"


def what_was_compared(compared: Compared) -> str:
    """One or two sentences: the tasks, the variants and the seeds."""
    (name, *others), tasks = compared.variants, compared.tasks
    seeds = len(tasks[0].evaluated.seeds)
    beside = f", next to {_listed(others)}" if others else ""
    first = f"It was then fine-tuned as the variant {name}{beside}, with {seeds} seeds each, "
    if len(tasks) == 1:
        examples = number(tasks[0].evaluated.examples.train)
        asked = tasks[0].task.info.goal
        return (
            f"{first}on the task {tasks[0].name} ({asked}), with "
            f"{examples} labelled examples{_budgets(compared)}."
        )
    names = _listed([task.name for task in tasks])
    few = _budgets(compared)
    labels = f", each with all its labelled examples{few}" if few else ""
    return f"{first}on {len(tasks)} tasks: {names}{labels}."


def _budgets(compared: Compared) -> str:
    counts = sorted(
        {
            evaluated.examples.train
            for task in compared.tasks
            for evaluated in task.by_budget
            if evaluated.budget is not None
        }
    )
    if not counts:
        return ""
    return f" and with {_listed([number(count) for count in counts])} of them"


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def headline(
    inputs: Mapping[str, Artifact], objective: Objective, compared: Compared | None = None
) -> str:
    """The line shown in the terminal: the verdict, or else a score, or else the loss."""
    if compared is None:
        pretrain, tokens = PretrainSummary.of(inputs["pretrain"]), objective.tokens
        loss = pretrain.final[tokens.loss_key]
        if not objective.predicts_text:
            return f"{tokens.name.lower()} loss {loss:.3f} a {tokens.unit}"
        return f"validation {tokens.key} {loss:.3f} (unigram {pretrain.unigram_entropy:.2f})"
    if not compared.judged:
        task, *others = compared.tasks
        more = f"; {len(others)} more task{'s' * (len(others) > 1)}" if others else ""
        return f"{task.name}: {task.evaluated.headline}{more}"
    task, *others = compared.judged
    difference = task.against_first[0]
    first, second, gap = difference.first, difference.second, difference.seeds
    points = f"{100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    said = verdict(difference, task.metric)
    name = said.name
    where = " over seeds only" if said.over_seeds_only else ""
    line = (
        f"{task.name}: {first} against {second} unresolved, {points}"
        if name == "unresolved"
        else f"{task.name}: {first} {name} {second}{where} by {points}"
    )
    if not others:
        return f"{line}, {gap.count} seeds"
    names = [verdict(each.against_first[0], each.metric).name for each in compared.judged]
    resolved = sum(name != "unresolved" for name in names)
    return f"{line}; {resolved} of {len(names)} tasks resolved"
