"""Advice: for each question the cheapest model that is about as good as the best, rivals without
pretraining among them, and what the best costs more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.section import Column, MeasuredRung, Panel, plot_estimate
from rungwise.forecast.comparisons import BITS, POINT, Advice, PricedModel, advise
from rungwise.report import formats, style
from rungwise.report.page import Section
from rungwise.report.palette import Series
from rungwise.report.sections.variants import TaskResult, VariantComparison

_BITS = "bits_per_byte"
_LEAST_SECONDS = 0.1  # of a model that is fitted in less


@dataclass(frozen=True)
class LadderQuestion:
    """A use for a model, `to predict text`, and the candidates for it: the score and the
    core-seconds of training of each."""

    words: str
    metric: str
    scores: dict[str, Estimate]
    seconds: dict[str, float]

    @property
    def advice(self) -> Advice:
        candidates = [
            PricedModel(name, score.mean, self.seconds[name]) for name, score in self.scores.items()
        ]
        higher = self.metric != _BITS  # what a task is judged by is higher where it is better
        return advise(candidates, POINT if higher else BITS, "higher" if higher else "lower")

    def sentence(self) -> str:
        """`To predict text: 3-gram, 1.41 bits per byte after 4 s of a core, the best of 7.`"""
        advice = self.advice
        choice, best = advice.choice, advice.best
        text = (
            f"{self.words}: {choice.name}, {self.write_score(choice.score)} after "
            f"{formats.duration(max(choice.seconds, 1.0), 0)} of a core"
        )
        if best is choice:
            return f"{text}, the best of {len(self.scores)}."
        times = f"{advice.times:.0f} times as much" if advice.times >= 2 else "about as much"
        return f"{text}; {best.name} has {self.write_score(best.score)} and costs {times}."

    def write_score(self, value: float) -> str:
        unit = formats.metric_name(self.metric)
        if formats.scale(self.metric) == 1:
            return f"{value:.2f} {unit}"
        return f"{formats.score(value, self.metric)} {unit}"


def gather_questions(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], comparison: VariantComparison | None
) -> list[LadderQuestion]:
    """The questions that at least two candidates answer: the text, then every task."""
    seconds = {name: _count_seconds(rung) for rung in rungs for name in (rung.name, *rung.also)}
    questions = [
        LadderQuestion(
            "To predict text",
            _BITS,
            {name: cell.value for name, cell in column.cells.items() if cell.exact},
            seconds,
        )
        for column in [each for each in columns if each.metric == _BITS][:1]
    ]
    questions += [_ask_task(task, seconds) for task in (comparison.tasks if comparison else ())]
    return [each for each in questions if len(each.scores) > 1]


def _ask_task(task: TaskResult, pretraining: Mapping[str, float]) -> LadderQuestion:
    evaluation = task.evaluation
    seconds: dict[str, float] = {}
    for name, result in evaluation.variants.items():
        runs = [row.seconds for row in evaluation.rows if row.variant == name]
        before = pretraining.get(name, 0.0) if result.pretraining else 0.0
        seconds[name] = before + sum(runs) / len(runs)
    seconds |= {name: rival.seconds for name, rival in evaluation.rivals.items()}
    return LadderQuestion(f"For the task {task.name}", task.metric, evaluation.estimates(), seconds)


def _count_seconds(rung: MeasuredRung) -> float:
    """Core-seconds of pretraining."""
    run = rung.pretrain.gradient
    workers = run.attempts[-1].workers if run and run.attempts else 1
    return max(rung.pretrain.seconds * workers, _LEAST_SECONDS)


def write_advice(
    questions: Sequence[LadderQuestion], looks: Mapping[str, Series]
) -> Section | None:
    """The section; None if no question has two candidates."""
    if not questions:
        return None
    panels = [
        Panel(
            each.words.removeprefix("For the task ").removeprefix("To "),
            "core-seconds of training",
            formats.metric_axis(each.metric, ""),
            {
                name: [plot_estimate(each.seconds[name], score, formats.scale(each.metric))]
                for name, score in each.scores.items()
                if name in looks
            },
            is_size=True,
        )
        for each in questions
    ]
    rows = [_make_row(each, name) for each in questions for name in each.scores]
    return Section(
        "advice",
        "Which to take",
        {"questions": questions},
        {"advice": style.draw_panels(panels, looks, columns=2)},
        {"advice": rows},
    )


def _make_row(question: LadderQuestion, name: str) -> dict[str, Any]:
    score = question.scores[name]
    return {
        "question": question.words,
        "model": name,
        "metric": question.metric,
        "score": score.mean,
        "low": score.low,
        "high": score.high,
        "core_seconds": question.seconds[name],
    }
