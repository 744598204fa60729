"""Verdicts, which follow from intervals alone, and the sentences at the top of the page."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rungwise.core.errors import list_first
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.summary import OF_A_TASK, CorpusSummary, source_blocks
from rungwise.evaluation.comparison.summary import PairedDifference
from rungwise.evaluation.statistics import false_verdicts
from rungwise.models.losses.objectives import Objective
from rungwise.report.formats import (
    compact,
    interval,
    metric_name,
    number,
    percent,
    points,
    points_interval,
    score,
    spoken,
)
from rungwise.report.variants import TaskResult, VariantComparison
from rungwise.training.summary import PretrainSummary

# A loss over some thousand masked tokens is accurate to about 0.03 nats; three times that is real.
_HARDLY_NATS = 0.1
_MOST_LABELS = 4  # in a sentence
_ONLY_SEEDS = " over seeds only"
_VERDICTS = ("above", f"above{_ONLY_SEEDS}", "below", f"below{_ONLY_SEEDS}")


def judge(difference: PairedDifference) -> str:
    """The verdict on the first of two variants: `above`, `above over seeds only` where the interval
    that also covers the draw of test examples contains 0, `below` likewise, or `unresolved`."""
    seeds, both = difference.seeds, difference.bootstrap
    if not (seeds.low > 0 or seeds.high < 0):
        return "unresolved"
    name = "above" if seeds.low > 0 else "below"
    return name if both.low > 0 or both.high < 0 else f"{name}{_ONLY_SEEDS}"


def judge_tasks(comparison: VariantComparison) -> tuple[str, str]:
    """A sentence with the verdict on the first variant of every task against its second, and the
    verdict in a word if all tasks have the same; "" if no task has two."""
    if not comparison.paired_tasks:
        return "", ""
    by_pair: dict[tuple[str, str], list[str]] = {}
    for task in comparison.paired_tasks:
        pair = task.against_first[0]
        by_pair.setdefault((pair.first, pair.second), []).append(judge(pair))
    if len(comparison.tasks) == 1:
        sentence = describe_difference(comparison.tasks[0])
    else:
        sentence = " ".join(sum_up(each, *pair) for pair, each in by_pair.items())
    words = {verdict.split()[0] for each in by_pair.values() for verdict in each}
    return sentence, words.pop() if len(words) == 1 else ""


def describe_difference(task: TaskResult) -> str:
    """The verdict on the first variant of a task against its second, in words with both scores:
    `Pretraining raised test accuracy from 29.7% to 45.5%: +15.8 points [+15.2, +16.5].`"""
    pair, variants, metric = task.against_first[0], task.evaluation.variants, task.metric
    verdict, first, second = judge(pair), pair.first, pair.second
    new, old = (score(variants[name].estimates[metric].mean, metric) for name in (first, second))
    size = f"{points(pair.seeds.mean)} points {points_interval(pair.seeds)}"
    score_name = f"test {metric_name(metric)}"
    of_pretraining = variants[first].pretraining and not variants[second].pretraining
    if verdict == "unresolved":
        pair_of = "pretrained and random weights" if of_pretraining else f"{first} and {second}"
        pretrainings = min(task.evaluation.pretrainings(name) for name in (first, second))
        runs = f"{pair.seeds.count} {'pretrainings' if pretrainings > 1 else 'seeds'}"
        return (
            f"Unresolved: {pair_of} cannot be told apart, with a {score_name} of {new} and {old}: "
            f"{size}, an interval that contains 0, over {runs}."
        )
    side = verdict.split()[0]
    if of_pretraining:
        verb = "raised" if side == "above" else "lowered"
        sentence = f"Pretraining {verb} {score_name} from {old} to {new}: {size}"
    else:
        sentence = f"{first} is {side} {second}, with a {score_name} of {new} and {old}: {size}"
    if verdict == side:
        return f"{sentence}."
    return (
        f"{sentence},{_ONLY_SEEDS}. If test examples are resampled as well, the interval is "
        f"{points_interval(pair.bootstrap)} and contains 0."
    )


def sum_up(verdicts: Sequence[str], first: str, second: str) -> str:
    counts, parts = Counter(verdicts), []
    for verdict in _VERDICTS:
        side, *where = verdict.split(maxsplit=1)
        if counts[verdict]:
            words = " ".join((first, "is", side, second, *where))
            parts.append(f"{words} on {counts[verdict]} of {len(verdicts)} tasks")
    if counts["unresolved"]:
        parts.append(f"{counts['unresolved']} of {len(verdicts)} unresolved")
    but = (
        " Over seeds only: the interval that also covers the choice of test examples contains 0."
        if any(_ONLY_SEEDS in each for each in verdicts)
        else ""
    )
    return f"{'; '.join(parts)}.{but}"


def describe_scores(comparison: VariantComparison) -> list[str]:
    """A sentence for each task on the score of its first variant, beside the best blind guess."""
    sentences = []
    for task in comparison.tasks:
        name, variant = next(iter(task.evaluation.variants.items()))
        estimate = variant.estimates[task.metric]
        sentence = (
            f"{name} has a test {metric_name(task.metric)} of {score(estimate.mean, task.metric)} "
            f"{interval(estimate, task.metric)} on {spoken(task.name)}"
        )
        if trivial := task.evaluation.best_trivial():
            against = "more" if task.evaluation.beats_baselines else "no more"
            guess = score(trivial[1], task.metric)
            sentence += f", {against} than guessing without reading ({guess})"
        sentences.append(f"{sentence}.")
    return sentences


def describe_luck(seeds: int) -> str:
    """Say how often a verdict over `seeds` of fine-tuning is false, with one pretraining each."""
    half, whole = (false_verdicts(seeds, ratio) for ratio in (0.5, 1.0))
    return (
        f"With one pretraining and {seeds} seeds of fine-tuning, two equally good models look "
        f"different in {half:.0%} of cases if pretraining varies half as much as fine-tuning, and "
        f"in {whole:.0%} if as much; 5% are meant. pretraining_seeds in the recipe mends that."
    )


def describe_rival(task: TaskResult) -> str:
    """Compare the best rival of a task, if it has any, with the best variant."""
    pair = task.against_rival
    if pair is None:
        return ""
    evaluation, metric = task.evaluation, task.metric
    ours = score(evaluation.variants[pair.first].estimates[metric].mean, metric)
    rival = evaluation.rivals[pair.second]
    size = f"{points(pair.bootstrap.difference)} points {points_interval(pair.bootstrap)}"
    start = f"Without any pretraining, {rival.name.replace(', ', ' with ')} does"
    both = (
        f"{score(rival.estimate.mean, metric)} test {metric_name(metric)} on {spoken(task.name)}, "
        f"{pair.first} {ours}"
    )
    if pair.bootstrap.low > 0:
        return f"{start} worse: {both}, {size}."
    if pair.bootstrap.high < 0:
        return f"{start} better: {both}, {size}."
    return f"{start} as well, as far as can be told: {both}, {size}."


def describe_guesses(pretrain: PretrainSummary, objective: Objective) -> list[str]:
    """How often the first guess is right; nothing for a model that guesses no tokens of text."""
    share = pretrain.final.get(objective.tokens.accuracy_key)
    if share is None or not objective.predicts_text:
        return []
    words = "of hidden words" if objective.masks else "of words"
    if objective.is_code_length:
        words += " from the text beside them"
    return [f"{pretrain.model.page_name(objective)} guesses {percent(share)} {words} right."]


def describe_learning(pretrain: PretrainSummary, objective: Objective) -> str:
    """Compare the loss with that of guessing words by their frequency, if it is one of text."""
    tokens = objective.tokens
    loss, guess = pretrain.final[tokens.loss_key], pretrain.unigram_loss
    if not objective.predicts_text:
        return f"The {tokens.name} loss ends at {loss:.3f} a {tokens.unit}."
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


def describe_training(inputs: Mapping[str, Artifact]) -> str:
    """One sentence: which model, on which text, for how long."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    model, run = pretrain.model, pretrain.gradient
    name = model.page_name(model.objective(pretrain.objective))
    verb = "pretrained further, from earlier weights," if pretrain.began_with else "pretrained"
    steps = f"{verb} for {number(run.steps)} steps" if run else "fitted"
    return (
        f"{name} with {compact(pretrain.parameters)} parameters "
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
