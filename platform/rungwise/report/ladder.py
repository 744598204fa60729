"""Ladder stage: one page about all rungs, from records and files of earlier stages; what a ladder
did not measure has no section."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.comparison.table import TaskMean
from rungwise.evaluation.suites.base import (
    Cell,
    Column,
    MeasuredRung,
    Suite,
    SuiteBlock,
    compare_on_new,
    find_best,
)
from rungwise.evaluation.suites.items import METRICS, merge_seeds
from rungwise.evaluation.suites.measure import MeasureConfig
from rungwise.report import claims, formats, style, tuning
from rungwise.report.advice import gather_questions, write_advice
from rungwise.report.comparison import write_budgets, write_mix, write_table
from rungwise.report.findings import describe_rival
from rungwise.report.forecast import gather_forecast, write_forecast
from rungwise.report.formats import Series, series
from rungwise.report.page import Page, Row, Section, recipe_text, write_origin, write_page
from rungwise.report.stage import LADDER_PAGE, LadderConfig, ReportSummary
from rungwise.report.variants import gather_comparison, input_artifact, name_rungs, rename_variants
from rungwise.tokenizer import TokenizerSummary
from rungwise.training.summary import PretrainSummary

TASKS_MEAN = "mean of tasks"
Looks = Mapping[str, Series]
Answered = dict[str, tuple[Suite, list[MeasuredRung]]]  # suites by name, with who answered


def write_ladder(
    config: LadderConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page about all stages of the experiment, by their titles, and claims."""
    rungs, comparison = gather_rungs(inputs, config.measured), gather_comparison(inputs)
    names = name_rungs(rungs)
    rungs = [
        replace(rung, name=names[rung.name], also=tuple(names[each] for each in rung.also))
        for rung in rungs
    ]
    all_names = [rung.name for rung in rungs]
    if comparison:
        comparison = rename_variants(comparison, names)
        all_names += [*comparison.variants, *comparison.rivals]
    looks = {name: series(place) for place, name in enumerate(dict.fromkeys(all_names))}
    if comparison:
        comparison = replace(comparison, looks=looks)
    judged = rename_variants(ClaimsSummary.of(inputs["claims"]), names)
    searches = tuning.gather_searches(inputs, looks, names)
    chosen = frozenset(each.rung for each in searches if each.summary.on_held_out)
    tasks = comparison.tasks if comparison else ()
    answered = _gather_suites(rungs)
    evaluations = [task.evaluation for task in tasks]
    columns = _gather_columns(answered, judged.averages, evaluations, chosen)
    questions = gather_questions(rungs, columns, comparison)
    more = gather_forecast(inputs, names)
    tested = claims.select_tested(judged.claims)
    claims_section = claims.write_claims(
        judged,
        tuning.list_untuned(searches, judged),
        claims.gather_verdicts(inputs, config.claims_at),
        more.chances(judged.claims) if more else {},
    )
    ladder_table = write_table(inputs, comparison, names, is_ladder=True)
    recipe = recipe_text(context.recipe)
    lede = [each.sentence() for each in questions]
    lede += [claims.count_verdicts(judged.claims)] if tested else []
    lede += [f"The task {task} is left out: {why}." for task, why in config.gaps.items()]
    page = Page(
        kind="ladder",
        file=LADDER_PAGE,
        workflow="ladder",
        lede=lede,
        headline=" ".join([*map(describe_rival, (t for t in tasks if t.rival_wins)), *lede]),
        budget=_describe_budget(inputs, rungs),
        sections=[
            write_advice(questions, looks),
            _write_picture(rungs, columns, looks),
            write_forecast(more, looks) if more else None,
            claims_section if tested else None,
            _write_history(rungs, columns, looks, ladder_table is not None),
            tuning.write_tuning(searches, names=(r.name for r in rungs)),
            *_write_suites(answered, looks),
            ladder_table,
            write_budgets(comparison),
            write_mix(comparison),
            None if tested else claims_section,
            write_origin(inputs, recipe, "ladder"),
        ],
    )
    return write_page(page, config.title, inputs, recipe, output)


def gather_rungs(
    inputs: Mapping[str, Artifact], measured: Mapping[str, tuple[str, ...]]
) -> list[MeasuredRung]:
    """The rungs by year, then in the order of the recipe; names in `measured` with the same first
    measure stage are one rung."""
    names: dict[str, list[str]] = {}
    titles: dict[str, tuple[str, ...]] = {}
    for name, seeds in measured.items():
        names.setdefault(seeds[0], []).append(name)
        titles[seeds[0]] = max(titles.get(seeds[0], ()), seeds, key=len)
    rungs = []
    for title, (name, *also) in names.items():
        artifact = inputs[title]
        seeds = tuple(inputs[each] for each in titles[title])
        pretrain = input_artifact(artifact, "pretrain", inputs)
        assert pretrain is not None, f"the pretraining of {name} is not among the stages"
        tokenizer = artifact.record["inputs"]["tokenizer"]["fingerprint"]
        summaries = PretrainSummary.of(pretrain), seeds, merge_seeds(seeds), tokenizer
        rungs.append(MeasuredRung(name, tuple(also), *summaries))
    return sorted(rungs, key=lambda rung: rung.pretrain.origin.year)


def _gather_suites(rungs: Sequence[MeasuredRung]) -> Answered:
    """The suites by name, each with the rungs that answered it."""
    answered: Answered = {}
    for rung in rungs:
        config = MeasureConfig.model_validate(rung.measured[0].record["config"])
        for name, suite in config.suites.items():
            if name not in rung.measure.passed_over:
                answered.setdefault(name, (suite, []))[1].append(rung)
    return answered


def _list_skipped_suites(rungs: Sequence[MeasuredRung]) -> dict[tuple[str, str], list[str]]:
    """Suites that rungs could not answer: {(suite, what they lack): names of rungs}."""
    skipped: dict[tuple[str, str], list[str]] = {}
    for rung in rungs:
        for lack in rung.measure.passed_over.items():
            skipped.setdefault(lack, []).append(rung.name)
    return skipped


def _gather_columns(
    answered: Answered,
    averages: Mapping[str, TaskMean],
    tasks: Sequence[EvaluateSummary],
    chosen: frozenset[str],
) -> list[Column]:
    """Every score that at least one rung has; the held-out text has `chosen` the settings of some
    rungs."""
    columns = [
        replace(column, chosen=chosen & {*column.cells}) if suite.on_held_out else column
        for name, (suite, rungs) in answered.items()
        for whole in suite.columns(name, rungs)
        for column in (whole, compare_on_new(rungs, whole))
        if column.cells
    ]
    names = [column.name for column in columns]
    columns = [
        replace(each, name=f"{each.name} ({each.suite})") if names.count(each.name) > 1 else each
        for each in columns
    ]
    if averages:
        means = {name: Cell(each.mean) for name, each in averages.items()}
        under = f"of {len(tasks)}"
        meaning = (
            "how well the model does after learning from labelled examples, "
            f"{under} {'task' if len(tasks) == 1 else 'tasks'}"
        )
        rivals = {
            name: fmean(task.rivals[name].estimate.mean for task in tasks)
            for name in tasks[0].rivals
            if all(name in task.rivals for task in tasks)
        }
        column = Column(TASKS_MEAN, under, "accuracy", means, find_best(means, "accuracy"))
        columns.append(replace(column, floors=rivals, meaning=meaning))
    return columns


def _write_picture(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], looks: Looks
) -> Section | None:
    """How well text is predicted, and what else was learnt: the mean of tasks, or else the score
    that most rungs have. None if no rung has a score that can be compared."""
    exact = [column for column in columns if any(cell.exact for cell in column.cells.values())]
    text = [column for column in exact if column.metric == "bits_per_byte"][:1]
    others = [column for column in exact if column.metric not in ("bits_per_byte", "perplexity")]
    others.sort(key=lambda column: (column.name != TASKS_MEAN, -len(column.cells)))
    scores = text + others[:1]
    if not scores:
        return None
    plots = {
        name: draw_ladder(rungs, scores, looks, narrow="narrow" in name)
        for name in ("ladder", "ladder-narrow")
    }
    return Section("picture", "The ladder", {"learnt": scores}, plots)


def draw_ladder(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], looks: Looks, *, narrow: bool = False
) -> bytes:
    """The ladder as a picture: a bar for each model, the newest on top, longer the more it learnt;
    a panel for each score."""
    values = [
        {
            name: cell.value
            for name, cell in column.cells.items()
            if cell.exact and not math.isnan(cell.value.mean)
        }
        for column in columns
    ]
    scored = {name for each in values for name in each}
    # Side by side the panels have the same rungs; below each other, their own.
    rows = [
        [rung for rung in rungs if rung.name in (each if narrow else scored)] for each in values
    ]
    heights = [style.MARGIN_INCHES + style.ROW_INCHES * len(each) for each in rows]
    figure, panels = style.new_strip(heights, narrow=narrow)
    for axes, column, own, scores in zip(panels, columns, rows, values, strict=True):
        names, higher = [rung.name for rung in own], METRICS[column.metric].higher_is_better
        style.draw_bars(axes, scores, names, column.metric, higher, looks, column.floors)
        unit = formats.metric_axis(column.metric, "")
        better = "higher is better" if higher else "lower is better"
        style.dress(axes, column.name, f"{unit}; {better}", grid="x")
        with_years = [f"{rung.name}  {rung.pretrain.origin.year}" for rung in own]
        labels = with_years if narrow or axes is panels[0] else [""] * len(own)
        axes.set_yticks(range(len(own)), labels, parse_math=False)
    return style.png(figure)


def _write_history(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], looks: Looks, has_table: bool
) -> Section:
    fields = {
        "rungs": rungs,
        "columns": columns,
        "looks": looks,
        "reference": list(dict.fromkeys(name for each in columns for name in each.published)),
        "floors": list(dict.fromkeys(name for each in columns for name in each.floors)),
        "skipped": _list_skipped_suites(rungs),
        "same_weights": {rung.name: rung.also for rung in rungs if rung.also},
        "has_table": has_table,
    }
    scores = [
        {"rung": rung.name} | row.model_dump() for rung in rungs for row in rung.measure.scores
    ]
    csv = {"ladder": [make_row(rung, columns) for rung in rungs], "suites": scores}
    return Section("history", "All scores", fields, csv=csv)


def make_row(rung: MeasuredRung, columns: Sequence[Column]) -> Row:
    """The row of a rung in the table of the ladder."""
    trained, model = rung.pretrain, rung.pretrain.model
    row: Row = {
        "rung": rung.name,
        "year": trained.origin.year,
        "paper": trained.origin.paper,
        "model": model.page_name(model.objective(trained.objective)),
        "parameters": trained.parameters,
        "tokens": trained.tokens,
        "operations": trained.flops,
        "seconds": trained.seconds,
        "pretrainings": len(rung.measured),
    }
    for column in columns:
        if cell := column.cells.get(rung.name):
            key, value = column.name.replace(" ", "_"), cell.value
            key = key if cell.exact else f"pseudo_{key}"
            row |= {key: value.mean, f"{key}_low": value.low, f"{key}_high": value.high}
    return row


def _write_suites(answered: Answered, looks: Looks) -> list[Section]:
    """The sections of the suites, with the blocks that each brings."""
    sections: dict[str, list[SuiteBlock]] = {}
    for name, (suite, rungs) in answered.items():
        if block := suite.show(name, rungs):
            sections.setdefault(suite.section, []).append(block)
    result = []
    for title, blocks in sections.items():
        drawn = [block for block in blocks if block.panels]
        plots = {f"suite-{each.suite}": style.draw_panels(each.panels, looks) for each in drawn}
        csv = {f"{each.suite}-{name}": rows for each in blocks for name, rows in each.csv.items()}
        fields = {"blocks": blocks, "looks": looks}
        result.append(Section("suites", title, fields, plots, csv, titled=True))
    return result


def _describe_budget(inputs: Mapping[str, Artifact], rungs: Sequence[MeasuredRung]) -> str:
    """The size at which everything on the page holds: corpus and training budget, in one line."""
    corpus, number = CorpusSummary.of(inputs["corpus"]), formats.number
    counts = sorted({rung.pretrain.tokens for rung in rungs})
    tokens = " to ".join(dict.fromkeys(map(formats.compact, (counts[0], counts[-1]))))
    vocabulary = number(TokenizerSummary.of(inputs["tokenizer"]).vocab_size)
    seconds = sum(artifact.record["seconds"] for artifact in inputs.values())
    return (
        f"All of this holds at this size: {number(corpus.documents.train)} documents "
        f"({corpus.amount(formats.compact)}) for training, {number(corpus.documents.validation)} "
        f"held out; vocabulary {vocabulary}; {len(rungs)} rungs, {tokens} tokens each; "
        f"{formats.duration(seconds)} in all stages together."
    )
