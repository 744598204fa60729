"""The section that compares variants task by task: scores, differences, settings and costs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rungwise.evaluation.comparison.summary import PretrainingCost
from rungwise.evaluation.statistics import Estimate, holm
from rungwise.report import palette, style
from rungwise.report.formats import metric_axis, metric_name, points_with_interval, score
from rungwise.report.page import Section
from rungwise.report.sections.findings import Verdict, describe_difference, sum_up, verdict
from rungwise.report.sections.variants import Row, TaskResult, VariantComparison, locate

_SPREAD = 0.3  # vertical, of a variant's seeds, so that equal scores stay visible
_BELOW = 0.22  # from the mean down to the seeds
_ROW_INCHES = 0.72
_BASELINE_LINES = (style.DASHED, (0, (1, 1.5)), (0, (6, 2, 1, 2)))


def write_comparison(comparison: VariantComparison | None) -> Section | None:
    """The section; None if nothing was evaluated."""
    if comparison is None:
        return None
    plots: dict[str, bytes | None] = {}
    for task in comparison.tasks:
        plots[f"scores-{task.name}"] = draw_scores(task, comparison.looks)
        if task.beside_first:
            plots[f"differences-{task.name}"] = draw_differences(task, comparison.looks)
    fields = {
        "comparison": comparison,
        "pretrainings": count_pretrainings(comparison),
        "verdict": verdict,
        "settings": settings,
        "selections": selections,
        "best_epochs": best_epochs,
        "cuts": cuts,
        "costs": costs(comparison),
        "were_swept": bool(selections(*comparison.tasks)),
    }
    csv = {
        "seeds": _seed_rows(comparison),
        "differences": _difference_rows(comparison),
        "noise": _noise_rows(comparison),
    }
    return Section("comparison", "Comparison", fields, plots, csv)


def count_pretrainings(comparison: VariantComparison) -> int:
    """The most pretrainings that any variant has."""
    evaluations = [task.evaluation for task in comparison.tasks]
    return max(each.pretrainings(name) for each in evaluations for name in each.variants)


@dataclass(frozen=True)
class BoardRow:
    """The result at a glance: a verdict per task with two variants or more, and one sentence for
    all. Empty if no task has two."""

    verdicts: dict[str, Verdict]
    sentence: str
    name: str  # above, below or unresolved; "" if tasks differ
    pair: tuple[str, str] | None  # the two variants; None if tasks have other ones


def judge_tasks(comparison: VariantComparison) -> BoardRow:
    """Judge the first variant of every task against its second."""
    verdicts: dict[str, Verdict] = {}
    by_pair: dict[tuple[str, str], list[Verdict]] = {}
    for task in comparison.paired_tasks:
        pair = task.against_first[0]
        verdicts[task.name] = verdict(pair)
        by_pair.setdefault((pair.first, pair.second), []).append(verdicts[task.name])
    if len(comparison.tasks) == 1:
        sentence = "".join(map(describe_difference, comparison.paired_tasks))
    else:
        sentence = " ".join(sum_up(each, *pair) for pair, each in by_pair.items())
    names = {each.name for each in verdicts.values()}
    return BoardRow(
        verdicts,
        sentence,
        names.pop() if len(names) == 1 else "",
        next(iter(by_pair)) if len(by_pair) == 1 else None,
    )


def settings(task: TaskResult) -> list[dict[str, Any]]:
    """Every fine-tuning key with each variant's value, and whether the values differ."""
    variants = task.evaluation.variants.values()
    blocks = [variant.finetune.model_dump(mode="json") for variant in variants]
    rows = []
    for key in dict.fromkeys(key for block in blocks for key in block):
        values = [block.get(key) for block in blocks]
        rows.append({"key": key, "values": values, "differ": any(v != values[0] for v in values)})
    return rows


def selections(*tasks: TaskResult) -> list[dict[str, Any]]:
    """For each swept variant, the validation score that selected its settings, and its validation
    and test scores with new seeds."""
    rows = []
    for task in tasks:
        for name, variant in task.evaluation.variants.items():
            selection = variant.selection
            if selection is None:
                continue
            validation = fmean(task.evaluation.scores(name, "validation"))
            rows.append(
                {
                    "variant": name,
                    **selection.model_dump(),
                    "validation": validation,
                    "test": variant.estimates[task.metric].mean,
                    "lost": validation - selection.score,
                }
            )
    return rows


def best_epochs(task: TaskResult) -> dict[str, list[int]]:
    """The epoch whose weights were scored, by seed, for variants that keep their best epoch."""
    return {
        name: [seed.epoch for seed in task.evaluation.rows if seed.variant == name]
        for name, variant in task.evaluation.variants.items()
        if variant.finetune.best_epoch
    }


def cuts(task: TaskResult) -> list[dict[str, Any]]:
    """Text beyond `sequence_length` by variant and split, where examples are cut or windowed."""
    return [
        {"variant": name, "split": split, "share": share, "of": variant.finetune.sequence_length}
        for name, variant in task.evaluation.variants.items()
        for split, share in variant.cut.items()
        if share.cut_examples or share.windowed_examples
    ]


def costs(comparison: VariantComparison) -> list[dict[str, Any]]:
    """The pretraining cost of each variant, and its ratio to the first one's.

    One row for a variant that costs the same on every task, next to a first one that does too; else
    one per task.
    """
    rows = []
    first_costs = _task_costs(comparison, comparison.variants[0])
    usual = next(iter(first_costs.values()))
    if any(cost != usual for cost in first_costs.values()):
        usual = None  # of a task without the first variant nothing is known then
    for name in comparison.variants:
        by_task = {
            task: (cost, first_costs.get(task, usual))
            for task, cost in _task_costs(comparison, name).items()
        }
        both = next(iter(by_task.values()))
        if all(each == both for each in by_task.values()):
            by_task = {"": both}
        for task, (cost, first) in by_task.items():
            share = None
            if cost and first and cost.flops and first.flops:
                share = cost.flops / first.flops
            rows.append({"variant": name, "task": task, "cost": cost, "share": share})
    return rows


def _task_costs(comparison: VariantComparison, variant: str) -> dict[str, PretrainingCost | None]:
    return {
        task.name: task.evaluation.variants[variant].pretraining
        for task in comparison.tasks
        if variant in task.evaluation.variants
    }


def _noise_rows(comparison: VariantComparison) -> list[Row]:
    """The judged metric of each variant by rate of typing errors."""
    return [
        {"task": task.name, "variant": name, "metric": task.metric, "rate": rate, **vars(each)}
        for task in comparison.tasks
        for name, variant in task.evaluation.variants.items()
        for rate, each in variant.noise.items()
    ]


def _seed_rows(comparison: VariantComparison) -> list[Row]:
    """Validation and test scores of every task, budget, variant and seed."""
    return [
        {
            **locate(evaluation),
            "variant": seed.variant,
            "pretraining": seed.pretraining,
            "seed": seed.seed,
            "epoch": seed.epoch,
            **{f"validation_{metric}": value for metric, value in seed.validation.items()},
            **{f"test_{metric}": value for metric, value in seed.test.items()},
        }
        for evaluation in comparison.evaluations
        for seed in evaluation.rows
    ]


def _difference_rows(comparison: VariantComparison) -> list[Row]:
    """Every pair of variants at every task and budget, with both intervals. `bootstrap_p_holm` is
    corrected over all rows."""
    pairs = [(each, pair) for each in comparison.evaluations for pair in each.differences]
    adjusted = holm([pair.bootstrap.p for _, pair in pairs])
    return [
        {
            **locate(evaluation),
            "metric": evaluation.metric,
            "first": pair.first,
            "second": pair.second,
            **asdict(pair.seeds),
            "bootstrap_low": pair.bootstrap.low,
            "bootstrap_high": pair.bootstrap.high,
            "bootstrap_p": pair.bootstrap.p,
            "bootstrap_p_holm": p,
            "relative_error_reduction": pair.error_reduction,
        }
        for (evaluation, pair), p in zip(pairs, adjusted, strict=True)
    ]


def draw_scores(task: TaskResult, looks: Mapping[str, palette.Series]) -> bytes:
    """The test score of every seed, with means, 95 % intervals and trivial baselines; rivals have
    no seeds."""
    estimates, metric = task.evaluation.estimates(), task.metric
    figure, axes = _new_rows(len(estimates), 1.7)
    for place, (name, estimate) in enumerate(estimates.items()):
        look = looks[name]
        _draw_seeds(axes, place, [100 * value for value in task.evaluation.scores(name)], look)
        _draw_mean(axes, place, estimate, score(estimate.mean, metric), look.colour)
    baselines = task.evaluation.trivial()
    for number, (name, value) in enumerate(baselines.items()):
        axes.axvline(
            100 * value,
            color=palette.MUTED,
            linestyle=_BASELINE_LINES[number % len(_BASELINE_LINES)],
            linewidth=1.3,
            zorder=1,
            label=f"{name.replace('_', ' ')} {score(value, metric)}",
        )
    if baselines:
        style.add_legend_below(figure, [axes], "trivial baselines")
    axes.margins(x=0.1)
    style.dress(axes, _scores_title(task), metric_axis(metric), grid="x")
    _name_rows(axes, list(estimates))
    return style.png(figure)


def draw_differences(task: TaskResult, looks: Mapping[str, palette.Series]) -> bytes:
    """The first variant minus each other one and each rival, seed by seed (pretraining by
    pretraining if both have several), with both intervals."""
    pairs = task.beside_first
    figure, axes = _new_rows(len(pairs), 1.9)
    axes.axvline(0, color=palette.INK, linewidth=1.2, zorder=1)
    for place, pair in enumerate(pairs):
        scores = task.evaluation.pair_scores(pair.first, pair.second)
        gaps = [100 * (a - b) for a, b in zip(*scores, strict=True)]
        _draw_seeds(axes, place, gaps, looks[pair.second], "one seed")
        axes.plot(
            [100 * pair.bootstrap.low, 100 * pair.bootstrap.high],
            [place - 0.1] * 2,
            color=palette.MUTED,
            linewidth=4,
            alpha=0.45,
            solid_capstyle="butt",
            zorder=2,
            label="95% interval over seeds and test examples",
        )
        label, text = "mean, 95% interval over seeds", points_with_interval(pair.seeds)
        _draw_mean(axes, place, pair.seeds, text, palette.INK, label)
    style.add_legend_below(figure, [axes], last=["one seed"])
    axes.margins(x=0.16)
    axis = f"test {metric_name(task.metric)}, {pairs[0].first} minus the other (points)"
    style.dress(axes, _differences_title(task), axis, grid="x")
    _name_rows(axes, [pair.second for pair in pairs])
    return style.png(figure)


def _scores_title(task: TaskResult) -> str:
    means = {name: each.mean for name, each in task.evaluation.estimates().items()}
    if len(means) == 2:
        scores = ", ".join(f"{name} {score(mean, task.metric)}" for name, mean in means.items())
        return f"{task.name}: {scores}"
    best = max(means, key=lambda name: means[name])
    return f"{task.name}: highest mean {score(means[best], task.metric)} ({best})"


def _differences_title(task: TaskResult) -> str:
    pairs = task.beside_first
    first = pairs[0].first
    if len(pairs) == 1:
        return f"{first} minus {pairs[0].second}, seed by seed"
    resolved = sum(pair.seeds.low > 0 or pair.seeds.high < 0 for pair in pairs)
    return f"{first} minus each other: {resolved} of {len(pairs)} intervals exclude 0"


def _new_rows(count: int, margin_inches: float) -> tuple[Figure, Axes]:
    height = max(style.HALF[1], margin_inches + _ROW_INCHES * count)
    return style.new_axes((style.HALF[0], height))


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """One labelled row per variant; call it after `style.dress`."""
    axes.set_yticks(range(len(names)), [style.wrap_name(name) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.45, -0.6)
    axes.tick_params(axis="y", labelsize=10, labelcolor=palette.INK, length=0)


def _draw_seeds(
    axes: Axes, place: int, values: Sequence[float], look: palette.Series, label: str | None = None
) -> None:
    most = max(len(values) - 1, 1)
    axes.scatter(
        values,
        [place + _BELOW + _SPREAD * (seed / most - 0.5) / 2 for seed in range(len(values))],
        s=26,
        color=look.colour,
        marker=look.marker,
        alpha=0.75,
        linewidth=0,
        zorder=2,
        label=label,
    )


def _draw_mean(
    axes: Axes, place: int, estimate: Estimate, text: str, colour: str, label: str | None = None
) -> None:
    """The mean with its interval, and `text` above it."""
    mean, height = 100 * estimate.mean, place - 0.1
    axes.errorbar(
        [mean],
        [height],
        xerr=[[mean - 100 * estimate.low], [100 * estimate.high - mean]],
        fmt="D",
        color=colour,
        markersize=6.5,
        capsize=4,
        linewidth=1.8,
        zorder=3,
        label=label,
    )
    box: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    axes.annotate(
        text,
        (mean, height),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=9.5,
        fontweight="bold",
        color=colour,
        bbox=box,
        zorder=4,
    )
