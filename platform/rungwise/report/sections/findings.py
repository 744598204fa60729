"""Verdicts, and the sentences at the top of the page.

A verdict follows from intervals alone: if one over seeds (or pretrainings) contains 0, nothing is
resolved, however large its mean.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rungwise.core.stages.artifact import Artifact
from rungwise.core.wording import list_first
from rungwise.corpus.summary import OF_A_TASK, CorpusSummary, source_blocks
from rungwise.evaluation.comparison.summary import PairedDifference
from rungwise.evaluation.statistics import false_verdicts
from rungwise.models.losses.objectives import Objective
from rungwise.report.formats import (
    compact,
    interval,
    metric_name,
    number,
    points,
    points_interval,
    score,
    with_article,
)
from rungwise.report.sections.variants import TaskResult, VariantComparison
from rungwise.training.summary import PretrainSummary

# A loss over some thousand masked tokens is accurate to about 0.03 nats; three times that is real.
_HARDLY_NATS = 0.1
_MOST_LABELS = 4  # in a sentence


@dataclass(frozen=True)
class Verdict:
    """How the first of two variants compares with the second. Differences are first minus second,
    so above 0 is good for the first.

    `over_seeds_only`: the interval that also covers the draw of test examples contains 0.
    """

    name: Literal["above", "below", "unresolved"]
    over_seeds_only: bool = False

    @property
    def state(self) -> str:
        """`above`, `above over seeds only`, the same with `below`, or `unresolved`."""
        return f"{self.name} over seeds only" if self.over_seeds_only else self.name


def verdict(difference: PairedDifference) -> Verdict:
    """The verdict on the difference of two variants; NaN is neither above nor below."""
    over_seeds, over_both = difference.seeds, difference.bootstrap
    if not (over_seeds.low > 0 or over_seeds.high < 0):
        return Verdict("unresolved")
    name = "above" if over_seeds.low > 0 else "below"
    return Verdict(name, over_seeds_only=not (over_both.low > 0 or over_both.high < 0))


def describe_difference(task: TaskResult) -> str:
    """The verdict on the first variant of a task against its second, in words with both scores:
    `Pretraining raised test accuracy from 29.7% to 45.5%: +15.8 points [+15.2, +16.5].`"""
    pair, variants, metric = task.against_first[0], task.evaluation.variants, task.metric
    judgement, first, second = verdict(pair), pair.first, pair.second
    new, old = (score(variants[name].estimates[metric].mean, metric) for name in (first, second))
    size = f"{points(pair.seeds.mean)} points {points_interval(pair.seeds)}"
    score_name = f"test {metric_name(metric)}"
    of_pretraining = variants[first].pretraining and not variants[second].pretraining
    if judgement.name == "unresolved":
        pair_of = "pretrained and random weights" if of_pretraining else f"{first} and {second}"
        return (
            f"Unresolved: {pair_of} cannot be told apart, with a {score_name} of {new} and {old}: "
            f"{size}, an interval that contains 0, over {_count_runs(task)}."
        )
    if of_pretraining:
        verb = "raised" if judgement.name == "above" else "lowered"
        sentence = f"Pretraining {verb} {score_name} from {old} to {new}: {size}"
    else:
        sentence = (
            f"{first} is {judgement.name} {second}, with a {score_name} of {new} and {old}: {size}"
        )
    if not judgement.over_seeds_only:
        return f"{sentence}."
    return (
        f"{sentence}, over seeds only. If test examples are resampled as well, the interval is "
        f"{points_interval(pair.bootstrap)} and contains 0."
    )


def _count_runs(task: TaskResult) -> str:
    pair = task.against_first[0]
    pretrainings = min(task.evaluation.pretrainings(name) for name in (pair.first, pair.second))
    return f"{pair.seeds.count} {'pretrainings' if pretrainings > 1 else 'seeds'}"


def describe_scores(comparison: VariantComparison | None) -> list[str]:
    """A sentence for each task on the score of its only variant."""
    return [_describe_score(task) for task in (comparison.tasks if comparison else ())]


def _describe_score(task: TaskResult) -> str:
    """The score of a task's first variant, beside the best guess that reads nothing."""
    name = next(iter(task.evaluation.variants))
    estimate = task.evaluation.variants[name].estimates[task.metric]
    sentence = (
        f"{name} has a test {metric_name(task.metric)} of {score(estimate.mean, task.metric)} "
        f"{interval(estimate, task.metric)} on {task.name}"
    )
    trivial = task.evaluation.best_trivial()
    if trivial is None:
        return f"{sentence}."
    against = "more" if task.evaluation.beats_baselines else "no more"
    return (
        f"{sentence}, {against} than guessing without reading ({score(trivial[1], task.metric)})."
    )


def describe_luck(seeds: int) -> str:
    """Say how often a verdict over `seeds` of fine-tuning is false, with one pretraining each."""
    half, whole = (false_verdicts(seeds, ratio) for ratio in (0.5, 1.0))
    return (
        f"With one pretraining and {seeds} seeds of fine-tuning, two equally good models look "
        f"different in {half:.0%} of cases if pretraining varies half as much as fine-tuning, and "
        f"in {whole:.0%} if as much; 5% are meant. pretraining_seeds in the recipe mends that."
    )


def describe_rival(task: TaskResult) -> str:
    """Compare the best rival with the best variant of a task, over seeds and test examples; "" if
    there is none."""
    pair = task.against_rival
    if pair is None:
        return ""
    evaluation, metric = task.evaluation, task.metric
    ours = score(evaluation.variants[pair.first].estimates[metric].mean, metric)
    rival = evaluation.rivals[pair.second]
    size = f"{points(pair.bootstrap.difference)} points {points_interval(pair.bootstrap)}"
    both = (
        f"on {task.name}, {rival.name}, has a test {metric_name(metric)} of "
        f"{score(rival.estimate.mean, metric)}, and the best variant, {pair.first}, {ours}: {size}"
    )
    if pair.bootstrap.low > 0:
        return f"Worse without pretraining: {both}."
    if pair.bootstrap.high < 0:
        return f"Better without pretraining: {both}."
    return f"As good without pretraining, as far as can be told: {both}, which contains 0."


def rival_headline(task: TaskResult) -> str:
    """Say in a line of the terminal that the best rival is not behind, as in `libraries: TF-IDF
    (chars) 43.8% beats bert 41.2%`; "" if it is."""
    pair = task.against_rival
    if pair is None or not task.rival_wins:
        return ""
    evaluation, metric = task.evaluation, task.metric
    ours = score(evaluation.variants[pair.first].estimates[metric].mean, metric)
    rival_score = score(evaluation.rivals[pair.second].estimate.mean, metric)
    verb = "beats" if pair.bootstrap.high < 0 else "cannot be told from"
    return f"{task.name}: {pair.second} {rival_score} {verb} {pair.first} {ours}"


def describe_learning(pretrain: PretrainSummary, objective: Objective) -> str:
    """Compare the loss with that of guessing words by their frequency; "" if it is none of text."""
    if not objective.predicts_text:
        return ""
    loss, guess = pretrain.final[objective.tokens.loss_key], pretrain.unigram_loss
    gain = guess - loss
    if gain >= _HARDLY_NATS:
        return (
            f"The model learnt to use context: its loss ends {gain:.2f} nats below guessing by "
            f"frequency, at {loss:.2f} of {guess:.2f}."
        )
    if gain > 0:
        return (
            f"The model learnt hardly more than how frequent words are: its loss ends only "
            f"{gain:.2f} nats below guessing by frequency, at {loss:.2f} of {guess:.2f}."
        )
    return (
        f"The model learnt nothing yet: its loss of {loss:.2f} is {-gain:.2f} nats above guessing "
        f"by frequency, {guess:.2f}."
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
    source = "Python package documentation" if kinds == {"pydocs"} else "text"
    return f"{size} of {source}: {list_first(summary.labels, _MOST_LABELS)}"


def describe_comparison(comparison: VariantComparison) -> str:
    """One or two sentences: the tasks, the variants and the seeds."""
    (name, *others), tasks = comparison.variants, comparison.tasks
    seeds = len(tasks[0].evaluation.seeds)
    beside = f", next to {_join_names(others)}" if others else ""
    start = f"It was then fine-tuned as the variant {name}{beside}, with {seeds} seeds each, "
    if len(tasks) == 1:
        examples = number(tasks[0].evaluation.examples.train)
        return (
            f"{start}on the task {tasks[0].name} ({tasks[0].kind.goal}), with "
            f"{examples} labelled examples{_budgets(comparison)}."
        )
    names = _join_names([task.name for task in tasks])
    few = _budgets(comparison)
    labels = f", each with all its labelled examples{few}" if few else ""
    return f"{start}on {len(tasks)} tasks: {names}{labels}."


def _budgets(comparison: VariantComparison) -> str:
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
    inputs: Mapping[str, Artifact],
    objective: Objective,
    comparison: VariantComparison | None = None,
) -> str:
    """The line shown in the terminal: where rivals win, and the verdict, or else a score, or else
    the loss."""
    if comparison is None:
        pretrain, tokens = PretrainSummary.of(inputs["pretrain"]), objective.tokens
        loss = pretrain.final[tokens.loss_key]
        if not objective.predicts_text:
            return f"{tokens.name.lower()} loss {loss:.3f} a {tokens.unit}"
        return f"validation {tokens.key} {loss:.3f} (unigram {pretrain.unigram_loss:.2f})"
    wins = filter(None, map(rival_headline, comparison.tasks))
    return "; ".join([*wins, _headline_variants(comparison)])


def _headline_variants(comparison: VariantComparison) -> str:
    if not comparison.paired_tasks:
        task, *others = comparison.tasks
        more = f"; {len(others)} more task{'s' * (len(others) > 1)}" if others else ""
        return f"{task.name}: {task.evaluation.headline}{more}"
    task, *others = comparison.paired_tasks
    difference = task.against_first[0]
    first, second, gap = difference.first, difference.second, difference.seeds
    points = f"{100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    judgement = verdict(difference)
    where = " over seeds only" if judgement.over_seeds_only else ""
    line = (
        f"{task.name}: {first} against {second} unresolved, {points}"
        if judgement.name == "unresolved"
        else f"{task.name}: {first} {judgement.name} {second}{where} by {points}"
    )
    if not others:
        return f"{line}, {_count_runs(task)}"
    names = [verdict(each.against_first[0]).name for each in comparison.paired_tasks]
    resolved = sum(name != "unresolved" for name in names)
    return f"{line}; {resolved} of {len(names)} tasks resolved"
