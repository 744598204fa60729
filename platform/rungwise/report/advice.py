"""Advice: for each question the cheapest model that is about as good as the best, rivals without
pretraining among them, and what the best costs more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.items import METRICS
from rungwise.evaluation.suites.section import Column, MeasuredRung, Panel, plot_estimate
from rungwise.forecast.forecast import BITS, POINT, Advice, PricedModel, advise
from rungwise.report import formats, style
from rungwise.report.formats import Series
from rungwise.report.page import Section
from rungwise.report.variants import VariantComparison

_BITS = "bits_per_byte"
_LEAST_SECONDS = 0.1  # of a model that is fitted in less


@dataclass(frozen=True)
class LadderQuestion:
    """A use for a model, `To predict text`, and the candidates for it: the score and the
    core-seconds of training of each. This text has `chosen` the settings of some."""

    words: str
    metric: str
    scores: dict[str, Estimate]
    seconds: dict[str, float]
    chosen: frozenset[str] = frozenset()

    @property
    def advice(self) -> Advice:
        candidates = [
            PricedModel(name, score.mean, self.seconds[name]) for name, score in self.scores.items()
        ]
        # A task is judged by what is higher where it is better.
        lower = self.metric in METRICS and not METRICS[self.metric].higher_is_better
        margin = BITS if lower else POINT
        return advise(candidates, margin, "lower" if lower else "higher")

    def sentence(self) -> str:
        """`To predict text: 3-gram, 1.412 bits per byte after 4 s of a core, the best of 7.`"""
        advice = self.advice
        choice, best = advice.choice, advice.best
        cost = formats.duration(max(choice.seconds, 1.0), 0)
        text = f"{self.words}: {choice.name}, {self._write_score(choice)} after {cost} of a core"
        if best is choice:
            return f"{text}, the best of {len(self.scores)}."
        times = f"{advice.times:.0f} times as much" if advice.times >= 2 else "about as much"
        return f"{text}; {best.name} has {self._write_score(best)} and costs {times}."

    def _write_score(self, model: PricedModel) -> str:
        bounds = formats.interval(self.scores[model.name], self.metric)
        score = f"{formats.score(model.score, self.metric)} {formats.metric_name(self.metric)}"
        mark = "(settings chosen on this text)" if model.name in self.chosen else ""
        return " ".join(filter(None, (score, bounds, mark)))


def gather_questions(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], comparison: VariantComparison | None
) -> list[LadderQuestion]:
    """The questions that at least two candidates answer: the text, then every task; without any,
    the score that most rungs have."""
    seconds = {name: _count_seconds(rung) for rung in rungs for name in (rung.name, *rung.also)}
    tasks = [task.evaluation for task in (comparison.tasks if comparison else ())]
    by_task = [_ask_task(each, seconds) for each in tasks]
    scores = [_ask_column(each, seconds) for each in columns if each.metric != "perplexity"]
    scores = sorted((each for each in scores if each.scores), key=lambda each: -len(each.scores))
    text = [each for each in scores if each.metric == _BITS][:1]
    questions = [each for each in (*text, *by_task) if len(each.scores) > 1]
    return questions or [*text, *scores][:1]


def _ask_column(column: Column, seconds: dict[str, float]) -> LadderQuestion:
    name = f"{column.name}, {column.under}" if column.under else column.name
    words = "To predict text" if column.metric == _BITS else f"By {name}"
    scores = {rung: cell.value for rung, cell in column.cells.items() if cell.exact}
    return LadderQuestion(words, column.metric, scores, seconds, column.chosen)


def _ask_task(evaluation: EvaluateSummary, pretraining: Mapping[str, float]) -> LadderQuestion:
    seconds: dict[str, float] = {}
    for name, result in evaluation.variants.items():
        runs = [row.seconds for row in evaluation.rows if row.variant == name]
        before = pretraining.get(name, 0.0) if result.pretraining else 0.0
        seconds[name] = before + sum(runs) / len(runs)
    seconds |= {name: rival.seconds for name, rival in evaluation.rivals.items()}
    words = f"For the task {evaluation.task}"
    return LadderQuestion(words, evaluation.metric, evaluation.estimates(), seconds)


def _count_seconds(rung: MeasuredRung) -> float:
    """Core-seconds of pretraining."""
    run = rung.pretrain.gradient
    workers = run.attempts[-1].workers if run and run.attempts else 1
    return max(rung.pretrain.seconds * workers, _LEAST_SECONDS)


def write_advice(
    questions: Sequence[LadderQuestion], looks: Mapping[str, Series]
) -> Section | None:
    """The section; None without a question."""
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
    rows = [
        {"question": each.words, "model": name, "metric": each.metric, "score": score.mean}
        | {"low": score.low, "high": score.high, "core_seconds": each.seconds[name]}
        for each in questions
        for name, score in each.scores.items()
    ]
    plots = {"advice": style.draw_panels(panels, looks, columns=2)}
    fields = {"questions": questions}
    return Section("advice", "Which to take", fields, plots, {"advice": rows})
