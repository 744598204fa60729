"""The findings of a run: the evaluations of each task at each label budget, the names of variants,
the verdicts, which follow from intervals alone, the sentences at the top of the page, and what the
run's page in MLflow shows: headline metrics and a description in Markdown."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from rungwise.core.errors import list_first
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.core.tracking.sender import EXPERIMENT_ID, RUN_ID
from rungwise.corpus.summary import OF_A_TASK, CorpusSummary, source_blocks
from rungwise.evaluation.comparison.summary import (
    EVALUATE,
    EvaluateSummary,
    PairedDifference,
    input_name,
)
from rungwise.evaluation.statistics import false_verdicts, holm
from rungwise.evaluation.suites.base import Rungs
from rungwise.models.config import name_models
from rungwise.models.losses.objectives import Objective
from rungwise.report import formats
from rungwise.report.stage import LADDER, REPORT
from rungwise.serving.card import link_page
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tasks.kinds.kind import TaskKind
from rungwise.training.fit_config import PRETRAIN
from rungwise.training.summary import PretrainSummary

Names = Mapping[str, str]  # on the page, by variant
# Fields of summaries that hold names of variants: as text, as keys, or in terms of a claim.
_NAMED = {"variant", "variants", "first", "second", "minus", "terms", "missing", "averages"}
# A loss over some thousand masked tokens is accurate to about 0.03 nats; three times that is real.
_HARDLY_NATS = 0.1
_MOST_LABELS = 4  # in a sentence
_ONLY_SEEDS = " over seeds only"
_VERDICTS = ("above", f"above{_ONLY_SEEDS}", "below", f"below{_ONLY_SEEDS}")
# Of what MLflow shows about a run.
PAGE_FILES = "report_files"  # sorts after report.html
PAGES = (REPORT.name, LADDER.name)
_PICTURES = ("scores-", "ladder.", "loss")  # the first one found is shown
_MOST_ROWS = 24
_WHERE = ("step", "tokens", "sequence_length")  # keys of a curve's row that are not results


@dataclass(frozen=True)
class TaskResult:
    """One task. `task` and `evaluation` summarise its stages with all labelled examples;
    `by_budget` has the evaluation at every number of examples, ascending."""

    name: str
    task: TaskSummary
    evaluation: EvaluateSummary
    by_budget: tuple[EvaluateSummary, ...]

    @property
    def kind(self) -> TaskKind:
        return task_kind(self.task.info)

    @property
    def metric(self) -> str:
        """The metric that variants are judged by; higher is better."""
        return self.evaluation.metric

    @property
    def against_first(self) -> list[PairedDifference]:
        """The task's first variant minus each other one; empty if it has no other."""
        return [pair for pair in self.beside_first if pair.second in self.evaluation.variants]

    @property
    def beside_first(self) -> list[PairedDifference]:
        """The task's first variant minus each other one, then minus each rival."""
        first = next(iter(self.evaluation.variants))
        return [pair for pair in self.evaluation.differences if pair.first == first]

    @property
    def against_rival(self) -> PairedDifference | None:
        """The best variant minus the best rival, by their test scores; None without a rival."""
        variants, rivals = self.evaluation.variants, self.evaluation.rivals
        if not rivals:
            return None
        first = max(variants, key=lambda name: variants[name].estimates[self.metric].mean)
        second = max(rivals, key=lambda name: rivals[name].estimate.mean)
        pairs = {(pair.first, pair.second): pair for pair in self.evaluation.differences}
        return pairs[first, second]

    @property
    def rival_wins(self) -> bool:
        """Whether no variant is above the best rival over seeds and test examples."""
        return self.against_rival is not None and not self.against_rival.bootstrap.low > 0


@dataclass(frozen=True)
class VariantComparison:
    """Everything that was evaluated. The first variant is the one in focus; `rivals` are by their
    short names, and `looks` has the colour, marker and line of each of both."""

    variants: tuple[str, ...]
    rivals: tuple[str, ...]
    tasks: tuple[TaskResult, ...]
    looks: formats.Looks

    @property
    def p_holm(self) -> dict[str, dict[str, float]]:
        """Bootstrap p-values of a task's first variant against each other and each rival, {task:
        {name: p}}, Holm-corrected as one family over all tasks."""
        pairs = [pair for task in self.tasks for pair in task.beside_first]
        adjusted = iter(holm([pair.bootstrap.p for pair in pairs]))
        return {
            task.name: {pair.second: next(adjusted) for pair in task.beside_first}
            for task in self.tasks
        }

    @property
    def paired_tasks(self) -> list[TaskResult]:
        return [task for task in self.tasks if task.against_first]

    @property
    def pretrainings(self) -> int:
        """The most pretrainings that any variant has."""
        evaluations = [task.evaluation for task in self.tasks]
        return max(each.pretrainings(name) for each in evaluations for name in each.variants)


def gather_comparison(inputs: Inputs) -> VariantComparison:
    """Collect the evaluations of a run, which may have none."""
    artifacts = select_stage(inputs, "evaluate").values()
    evaluations = [EvaluateSummary.of(artifact) for artifact in artifacts]
    tasks = []
    for artifact, whole in zip(artifacts, evaluations, strict=True):
        if whole.budget is not None:
            continue
        same = [each for each in evaluations if each.task == whole.task]
        same.sort(key=lambda each: (each.examples.train, each.budget is None))
        task = TaskSummary.of(input_artifact(artifact, "task", inputs))
        tasks.append(TaskResult(whole.task, task, whole, tuple(same)))
    # A task may use only some of the variants.
    variants = tuple(dict.fromkeys(name for task in tasks for name in task.evaluation.variants))
    rivals = tuple(dict.fromkeys(name for task in tasks for name in task.evaluation.rivals))
    looks = {name: formats.series(place) for place, name in enumerate((*variants, *rivals))}
    return VariantComparison(variants, rivals, tuple(tasks), looks)


def select_stage(inputs: Inputs, stage: str) -> dict[str, Artifact]:
    """The artifacts of one kind of stage, by title."""
    return {title: artifact for title, artifact in inputs.items() if artifact.stage == stage}


def input_artifact(artifact: Artifact, name: str, inputs: Inputs) -> Artifact:
    """The stage of the run that is the input `name` of `artifact`, by its fingerprint, since tasks
    that share a stage have it under one title. Raises KeyError without such an input."""
    fingerprint = artifact.record["inputs"][name]["fingerprint"]
    return next(each for each in inputs.values() if each.fingerprint == fingerprint)


def name_variants(inputs: Inputs) -> dict[str, str]:
    """The names of a run's variants as people write them, by variant."""
    models = {}
    for artifact in select_stage(inputs, "evaluate").values():
        for name in EvaluateSummary.of(artifact).variants:
            source = input_artifact(artifact, input_name("pretrain", name), inputs)
            summary = PretrainSummary.of(source)
            models[name] = summary.model, summary.model.objective(summary.objective)
    return {name: formats.spoken(words) for name, words in name_models(models).items()}


def name_rungs(rungs: Rungs) -> dict[str, str]:
    """The names of a ladder's models as people write them, by variant. Records and files of other
    stages keep the variants' names."""
    models = {
        name: (trained.model, trained.model.objective(trained.objective))
        for rung in rungs
        for trained in [rung.pretrain]
        for name in (rung.name, *rung.also)
    }
    return name_models(models)


def rename_variants(value: Any, names: Names, named: bool = False) -> Any:
    """A summary, or a part of one, with the names of models in the fields that name variants."""
    match value:
        case BaseModel() | TaskResult() | VariantComparison():
            parts = {
                name: rename_variants(part, names, name in _NAMED)
                for name, part in vars(value).items()
            }
            is_model = isinstance(value, BaseModel)
            return value.model_copy(update=parts) if is_model else replace(value, **parts)
        case tuple():
            return tuple(rename_variants(each, names, named) for each in value)
        case dict():
            return {
                rename_variants(key, names, named): rename_variants(each, names)
                for key, each in value.items()
            }
        case str() if named:
            rung, mark, rest = re.fullmatch(r"([^/@]*)([/@]?)(.*)", value).groups()  # pyright: ignore[reportOptionalMemberAccess]
            return f"{names.get(rung, rung)}{mark}{rest}"  # a rung, at a layer or a label budget
    return value


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
    means = (variants[name].estimates[metric].mean for name in (first, second))
    new, old = (formats.score(mean, metric) for mean in means)
    size = f"{formats.points(pair.seeds.mean)} points {formats.points_interval(pair.seeds)}"
    score_name = f"test {formats.metric_name(metric)}"
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
        f"{formats.points_interval(pair.bootstrap)} and contains 0."
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
    text = f"{'; '.join(parts)}."
    if any(_ONLY_SEEDS in each for each in verdicts):
        text += " Over seeds only: the interval that also covers the choice of test examples "
        text += "contains 0."
    return text


def describe_scores(comparison: VariantComparison) -> list[str]:
    """A sentence for each task on the score of its first variant, beside the best blind guess."""
    sentences = []
    for task in comparison.tasks:
        name, variant = next(iter(task.evaluation.variants.items()))
        estimate = variant.estimates[task.metric]
        mean = formats.score(estimate.mean, task.metric)
        sentence = (
            f"{name} has a test {formats.metric_name(task.metric)} of {mean} "
            f"{formats.interval(estimate, task.metric)} on {formats.spoken(task.name)}"
        )
        if trivial := task.evaluation.best_trivial():
            against = "more" if task.evaluation.beats_baselines else "no more"
            guess = formats.score(trivial[1], task.metric)
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
    own_score = formats.score(evaluation.variants[pair.first].estimates[metric].mean, metric)
    rival = evaluation.rivals[pair.second]
    points = formats.points(pair.bootstrap.difference)
    size = f"{points} points {formats.points_interval(pair.bootstrap)}"
    start = f"Without any pretraining, {rival.name.replace(', ', ' with ')} does"
    rival_score = formats.score(rival.estimate.mean, metric)
    both = f"{rival_score} test {formats.metric_name(metric)} on {formats.spoken(task.name)}, "
    both += f"{pair.first} {own_score}"
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
    name = pretrain.model.page_name(objective)
    return [f"{name} guesses {formats.percent(share)} {words} right."]


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


def describe_training(inputs: Inputs) -> str:
    """One sentence: which model, on which text, for how long."""
    pretrain = PretrainSummary.of(inputs["pretrain"])
    model, run = pretrain.model, pretrain.gradient
    name = model.page_name(model.objective(pretrain.objective))
    verb = "pretrained further, from earlier weights," if pretrain.began_with else "pretrained"
    steps = f"{verb} for {formats.number(run.steps)} steps" if run else "fitted"
    return (
        f"{name} with {formats.compact(pretrain.parameters)} parameters "
        f"({model.describe()}) was {steps} on {formats.compact(pretrain.tokens)} tokens, "
        f"{pretrain.epochs:.1f} passes over {describe_text(inputs['corpus'])}."
    )


def describe_text(corpus: Artifact) -> str:
    """The training text in words: how much, and from where."""
    summary = CorpusSummary.of(corpus)
    documents = formats.number(summary.documents.train)
    size = f"{documents} documents ({summary.amount(formats.compact)})"
    kinds = {source["kind"] for source in source_blocks(corpus)}
    if kinds == {OF_A_TASK}:
        return f"{size} of the {OF_A_TASK}"
    source = "Python package documentation" if kinds == {"pydocs"} else "text"
    return f"{size} of {source}: {list_first(summary.labels, _MOST_LABELS)}"


def page_name(artifact: Artifact) -> str | None:
    """The name of the HTML page in a report or ladder artifact, None for other artifacts."""
    return artifact.record["summary"]["page"] if artifact.stage in PAGES else None


def headline_metrics(finished: Mapping[str, Artifact]) -> dict[str, float]:
    """The last validation of every pretraining, and the test score of every variant and rival."""
    results: dict[str, float] = {}
    for title, artifact in finished.items():
        if artifact.stage == PRETRAIN.name:
            final = PretrainSummary.of(artifact).final
            results |= {f"{title}/{key}": float(final[key]) for key in final if key not in _WHERE}
        elif artifact.stage == EVALUATE.name:
            evaluated = EvaluateSummary.of(artifact)
            for name, estimate in evaluated.estimates().items():
                # The UI groups charts into rows by what precedes the last slash.
                results[f"{title}/{evaluated.metric}/{name}"] = estimate.mean
    return results


def description(finished: Mapping[str, Artifact], root: str) -> str:
    """Markdown with the verdict, the picture of the page and a line for each result."""
    pages = [artifact for artifact in finished.values() if artifact.stage in PAGES]
    results = {
        title: artifact for title, artifact in finished.items() if artifact.stage not in PAGES
    }
    last = pages[-1] if pages else list(results.values())[-1]
    lines = [last.headline, ""]  # plain, since a list of runs shows it as it is
    if page := page_name(last):  # in the first line, which the UI does not fold away
        lines[0] += f" The whole page: {link_page(EXPERIMENT_ID, RUN_ID, page)}"
    if {"pretrain", "corpus"} <= finished.keys() and pages:
        lines += [describe_training(finished), ""]
    names = [name for page in pages[-1:] for name in page.record["files"] if name.endswith(".png")]
    pictures = [name for start in _PICTURES for name in names if name.startswith(start)]
    if pictures:
        picture = pictures[0]
        where = f"get-artifact?path={PAGE_FILES}/{picture}&run_uuid={RUN_ID}"
        lines += [f"![{picture.removesuffix('.png')}]({where})", ""]
    lines += ["| stage | result |", "|---|---|"]
    cells = str.maketrans({"|": "\\|", "\n": " "})
    rows = [f"| {title} | {each.headline.translate(cells)} |" for title, each in results.items()]
    lines += rows[-_MOST_ROWS:]
    if len(rows) > _MOST_ROWS:
        lines.append(f"| | and {len(rows) - _MOST_ROWS} stages before these |")
    return "\n".join([*lines, "", f"Files: `{root}`"])
