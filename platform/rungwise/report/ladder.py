"""Ladder stage: one page about all rungs, from records and files of earlier stages; what a ladder
did not measure has no section. Its claims stand with how far luck may explain them, as bars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from rungwise.core.errors import format_count
from rungwise.core.stages.artifact import Artifact, Inputs
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.comparison.claims import (
    TASKS,
    VERDICTS,
    ClaimResult,
    ClaimsSummary,
    ComparisonResult,
)
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.base import (
    Cell,
    Column,
    MeasuredRung,
    Rungs,
    Suite,
    SuiteBlock,
    find_best,
)
from rungwise.evaluation.suites.items import METRICS, merge_seeds
from rungwise.evaluation.suites.measure import MeasureConfig
from rungwise.report import comparison as sections
from rungwise.report import findings, formats, style
from rungwise.report.findings import Names
from rungwise.report.forecast import gather_forecast, gather_questions, write_advice, write_forecast
from rungwise.report.formats import Looks
from rungwise.report.page import READING, Page, Row, Section, write_page
from rungwise.report.stage import LadderConfig, ReportSummary
from rungwise.tokenizer import TokenizerSummary
from rungwise.training.summary import PretrainSummary

TASKS_MEAN = "mean of tasks"
_FEW = 10  # equal test examples, too few to tell much
_WIDER = 1.15  # half a bar, relative to the farthest end of an interval
Columns = Sequence[Column]
Suites = dict[str, tuple[Suite, list[MeasuredRung]]]  # by name, with the rungs that answered


def write_ladder(
    config: LadderConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page about all stages of the experiment, by their titles, and claims."""
    rungs, comparison = gather_rungs(inputs, config.measured), findings.gather_comparison(inputs)
    names = findings.name_rungs(rungs)
    rungs = [
        replace(rung, name=names[rung.name], also=tuple(names[each] for each in rung.also))
        for rung in rungs
    ]
    comparison = findings.rename_variants(comparison, names)
    all_names = [rung.name for rung in rungs] + [*comparison.variants, *comparison.rivals]
    looks = {name: formats.series(place) for place, name in enumerate(dict.fromkeys(all_names))}
    comparison = replace(comparison, looks=looks)
    judgement = findings.rename_variants(ClaimsSummary.of(inputs["claims"]), names)
    searches = sections.gather_searches(inputs, looks, names)
    tuned_on_text = frozenset(each.rung for each in searches if each.summary.on_held_out)
    suites = _gather_suites(rungs)
    evaluations = [task.evaluation for task in comparison.tasks]
    columns = _gather_columns(suites, judgement.averages, evaluations, tuned_on_text)
    questions = gather_questions(rungs, columns, comparison)
    more = gather_forecast(inputs, names)
    metrics = {each.task: each.metric for each in evaluations}
    tests = select_tested(judgement.claims)
    claims_section = write_claims(
        judgement,
        sections.list_untuned(searches, judgement),
        gather_verdicts(inputs, config.claims_at),
        more.chances(judgement.claims) if more else {},
    )
    once = any(claim.pretrainings == 1 for claim in judgement.claims)
    luck = findings.describe_luck(judgement.seeds) if judgement.seeds and once else ""
    reading = {"comparison": comparison, "searches": searches, "luck": luck, "claims": tests}
    ladder_table = sections.write_table(inputs, comparison, names, is_ladder=True)
    lede = [each.sentence() for each in questions]
    lede += [count_verdicts(judgement.claims)] if tests else []
    for gap, reason in config.gaps.items():
        gap = formats.spoken(gap)
        lede.append(f"{gap[0].upper()}{gap[1:]} is left out: {reason}.")
    page = Page(
        kind="ladder",
        workflow="ladder",
        lede=lede,
        budget=_describe_budget(inputs, rungs),
        sections=[
            write_advice(questions, looks),
            _write_picture(rungs, columns, looks),
            write_forecast(more, looks, metrics) if more else None,
            claims_section if tests else None,
            _write_history(rungs, columns, looks, ladder_table is not None),
            sections.write_tuning(searches, names=(r.name for r in rungs)),
            *_write_suites(suites, looks),
            ladder_table,
            sections.write_budgets(comparison),
            sections.write_mix(comparison),
            None if tests else claims_section,
            Section("reading", READING, reading),
        ],
    )
    summary = write_page(page, config.title, inputs, context.recipe, output)
    choice = questions[0].choice if questions else None
    recommended = [
        rung.measured[0].record["inputs"]["pretrain"]["fingerprint"]
        for rung in rungs
        if choice in (rung.name, *rung.also)
    ]
    return summary.model_copy(update={"recommended": next(iter(recommended), None)})


def gather_rungs(inputs: Inputs, measured: Mapping[str, tuple[str, ...]]) -> list[MeasuredRung]:
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
        pretrain = findings.input_artifact(artifact, "pretrain", inputs)
        tokenizer = artifact.record["inputs"]["tokenizer"]["fingerprint"]
        summaries = PretrainSummary.of(pretrain), seeds, merge_seeds(seeds), tokenizer
        rungs.append(MeasuredRung(name, tuple(also), *summaries))
    return sorted(rungs, key=lambda rung: rung.pretrain.origin.year)


def _gather_suites(rungs: Rungs) -> Suites:
    suites: Suites = {}
    for rung in rungs:
        config = MeasureConfig.model_validate(rung.measured[0].record["config"])
        for name, suite in config.suites.items():
            if name not in rung.measure.passed_over:
                suites.setdefault(name, (suite, []))[1].append(rung)
    return suites


def _gather_columns(
    suites: Suites,
    averages: Mapping[str, Estimate],
    tasks: Sequence[EvaluateSummary],
    tuned_on_text: frozenset[str],
) -> list[Column]:
    """Every score that at least one rung has; the settings of some were chosen by held-out text."""
    columns = [
        replace(column, chosen=tuned_on_text & {*column.cells}) if suite.on_held_out else column
        for name, (suite, rungs) in suites.items()
        for column in suite.columns(name, rungs)
        if column.cells
    ]
    names = [column.name for column in columns]
    columns = [
        replace(each, name=f"{each.name} ({each.suite})") if names.count(each.name) > 1 else each
        for each in columns
    ]
    if averages:
        means = {name: Cell(mean) for name, mean in averages.items()}
        metrics = list(dict.fromkeys(formats.metric_name(task.metric) for task in tasks))
        under = f"{' and '.join(metrics)} of {format_count(len(tasks), 'task')}"
        meaning = f"how well the model does after learning from labelled examples, {under}"
        rivals = {
            name: fmean(task.rivals[name].estimate.mean for task in tasks)
            for name in tasks[0].rivals
            if all(name in task.rivals for task in tasks)
        }
        column = Column(TASKS_MEAN, under, "accuracy", means, find_best(means, "accuracy"))
        columns.append(replace(column, floors=rivals, meaning=meaning))
    return columns


def _write_picture(rungs: Rungs, columns: Columns, looks: Looks) -> Section | None:
    """How well text is predicted, and what else was learnt: the mean of tasks, or else the score
    that most rungs have. None if no rung has a score that can be compared."""
    exact = [column for column in columns if any(cell.exact for cell in column.cells.values())]
    text = [column for column in exact if column.metric == "bits_per_byte"]
    others = [column for column in exact if column.metric not in ("bits_per_byte", "perplexity")]
    others.sort(key=lambda column: (column.name != TASKS_MEAN, -len(column.cells)))
    scores = text[:1] + others[:1]
    if not scores:
        return None
    plots = style.draw_adaptive("ladder", partial(draw_ladder, rungs, scores, looks))
    return Section("picture", "The ladder", {"learnt": scores}, plots)


def draw_ladder(rungs: Rungs, columns: Columns, looks: Looks, *, narrow: bool = False) -> bytes:
    """The ladder as a picture: a mark for each model, the newest on top, further to the right the
    more it learnt; a panel for each score."""
    values = [
        {
            name: cell.value
            for name, cell in column.cells.items()
            if cell.exact and not math.isnan(cell.value.mean)
        }
        for column in columns
    ]
    every = {name for each in values for name in each}
    # Side by side the panels have the same rungs; below each other, their own.
    rows = [[rung for rung in rungs if rung.name in (each if narrow else every)] for each in values]
    heights = [style.MARGIN_INCHES + style.ROW_INCHES * len(each) for each in rows]
    figure, panels = style.new_strip(heights, narrow=narrow)
    for axes, column, own, scores in zip(panels, columns, rows, values, strict=True):
        names, higher = [rung.name for rung in own], METRICS[column.metric].higher_is_better
        style.draw_bars(axes, scores, names, column.metric, higher, looks, column.floors)
        # Tasks that are averaged may be judged by different scores.
        is_mean = column.name == TASKS_MEAN
        unit = "score (%)" if is_mean else formats.metric_axis(column.metric, "")
        better = "higher is better" if higher else "lower is better"
        divider = ";\n" if narrow else "; "
        style.dress(axes, formats.spoken(column.name), f"{unit}{divider}{better}", grid="x")
        origins = [(rung.name, rung.pretrain.origin) for rung in own]
        with_years = [f"{name}\n{origin.paper} {origin.year}" for name, origin in origins]
        labels = with_years if narrow or axes is panels[0] else [""] * len(own)
        axes.set_yticks(range(len(own)), labels, parse_math=False, fontsize=8 if narrow else 8.5)
    return style.png(figure)


def _write_history(rungs: Rungs, columns: Columns, looks: Looks, has_table: bool) -> Section:
    skipped: dict[tuple[str, str], list[str]] = {}  # rungs, by suite and what they lack for it
    for rung in rungs:
        for lack in rung.measure.passed_over.items():
            skipped.setdefault(lack, []).append(rung.name)
    fields = {
        "rungs": rungs,
        "columns": columns,
        "looks": looks,
        "floors": list(dict.fromkeys(name for each in columns for name in each.floors)),
        "skipped": skipped,
        "same_weights": {rung.name: rung.also for rung in rungs if rung.also},
        "has_table": has_table,
    }
    scores = [
        {"rung": rung.name} | row.model_dump() for rung in rungs for row in rung.measure.scores
    ]
    csv = {"ladder": [make_row(rung, columns) for rung in rungs], "suites": scores}
    return Section("history", "All scores", fields, csv=csv)


def make_row(rung: MeasuredRung, columns: Columns) -> Row:
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


def _write_suites(suites: Suites, looks: Looks) -> list[Section]:
    """The sections of the suites, with the blocks that each brings."""
    by_section: dict[str, list[SuiteBlock]] = {}
    for name, (suite, rungs) in suites.items():
        if block := suite.show(name, rungs):
            by_section.setdefault(suite.section, []).append(block)
    return [
        Section("suites", title, {"blocks": blocks, "looks": looks}, titled=True)
        for title, blocks in by_section.items()
    ]


def _describe_budget(inputs: Inputs, rungs: Rungs) -> str:
    corpus = CorpusSummary.of(inputs["corpus"])
    counts = sorted({rung.pretrain.tokens for rung in rungs})
    tokens = " to ".join(dict.fromkeys(map(formats.compact, (counts[0], counts[-1]))))
    train, held_out = map(formats.number, (corpus.documents.train, corpus.documents.validation))
    vocabulary = formats.number(TokenizerSummary.of(inputs["tokenizer"]).vocab_size)
    seconds = sum(artifact.record["seconds"] for artifact in inputs.values())
    return (
        f"All of this holds at this size: {train} documents ({corpus.amount(formats.compact)}) for "
        f"training, {held_out} held out; vocabulary {vocabulary}; {len(rungs)} rungs, {tokens} "
        "tokens each; "
        f"{formats.duration(seconds)} in all stages together."
    )


def write_claims(
    judgement: ClaimsSummary,
    untuned: Mapping[str, Sequence[str]],
    verdicts_at: Mapping[str, Mapping[str, str]],
    chances: Mapping[str, float],
) -> Section:
    """The section. By claim: its verdicts at shares of the budget, the rungs in it that were not
    tuned, and the chance that it holds with more time."""
    tests = select_tested(judgement.claims)
    fields = {
        "tested": tests,
        "untested": [each for each in judgement.claims if each.verdict == "not tested"],
        "effect": make_effect,
        "luck_of": _describe_pretrainings,
        "chance": _describe_chance,
        "comparison": describe_comparison,
        "untuned_in": untuned,
        "verdicts_at": verdicts_at,
        "chances": chances,
    }
    title = "What was found" if tests else "Claims"
    return Section("claims", title, fields)


def select_tested(claims: Sequence[ClaimResult]) -> list[ClaimResult]:
    """The claims of which anything was compared, by verdict: decided ones first."""
    tests = [claim for claim in claims if claim.verdict != "not tested"]
    return sorted(tests, key=lambda claim: VERDICTS.index(claim.verdict))


def gather_verdicts(inputs: Inputs, titles: Names) -> dict[str, dict[str, str]]:
    """The verdicts of each claim that was tested, by the parts of the ladder with these titles."""
    verdicts: dict[str, dict[str, str]] = {}
    for part, title in titles.items():
        for claim in select_tested(ClaimsSummary.of(inputs[title]).claims):
            verdicts.setdefault(claim.id, {})[part] = claim.verdict
    return verdicts


def count_verdicts(claims: Sequence[ClaimResult]) -> str:
    """`Of 7 claims tested, 4 are confirmed, 1 contradicted, 2 undecided.`"""
    tests = select_tested(claims)
    first, *others = VERDICTS[:-1]
    counts = {each: sum(claim.verdict == each for claim in tests) for each in VERDICTS}
    words = [f"{counts[first]} {'is' if counts[first] == 1 else 'are'} {first}"]
    words += [f"{counts[verdict]} {verdict}" for verdict in others]
    return f"Of {format_count(len(tests), 'claim')} tested, {', '.join(words)}."


def _describe_pretrainings(claim: ClaimResult) -> str:
    count = claim.pretrainings
    if count is None:
        return "Counted, not trained: luck has no part in these models."
    if count == 1:
        return "Each model was trained once: another training might come out differently."
    return f"Every model was trained {count} times or more; the verdict allows for their luck."


def _describe_chance(claim: ClaimResult) -> str:
    """The corrected p of a claim, and why an interval off the line may still decide nothing."""
    assert claim.p_holm is not None
    text = f"{formats.p_value(claim.p_holm)} after correction for all claims tested"
    if claim.verdict != "undecided":
        return text
    if any(each.verdict in ("confirmed", "contradicted") for each in claim.comparisons):
        text += "; an interval beside the line is not enough among so many"
    effective = min(each.effective or math.inf for each in claim.comparisons)
    if effective < _FEW:
        count = formats.number(effective, 1)
        text += f"; test examples weigh so unequally that they count as {count}"
    return text


def make_effect(result: ComparisonResult) -> Row:
    """A comparison that was made, in words, and as a bar from 0 to 100; right of the threshold, 50,
    is claimed."""
    assert result.value is not None
    low, high = (result.value if each is None else each for each in (result.low, result.high))
    farthest = max(abs(each - result.threshold) for each in (result.value, low, high))
    half = _WIDER * farthest or 1.0
    at, low_end, high_end = (
        50 + 50 * (each - result.threshold) / half for each in (result.value, low, high)
    )
    ends = f"[{_number(result, low)}, {_number(result, high)}]" if result.low is not None else ""
    words = {"value": _words(result, result.value), "interval": ends}
    words["threshold"] = _words(result, result.threshold)
    return {**words, "at": at, "low": low_end, "high": high_end}


def _words(result: ComparisonResult, value: float) -> str:
    text = _number(result, value)
    if result.scale == "log":
        return f"factor {text}"
    return f"{text} points" if _is_in_points(result) else text


def _number(result: ComparisonResult, value: float) -> str:
    if result.scale == "log":
        return formats.number(math.exp(value), 2)
    return formats.points(value) if _is_in_points(result) else formats.format_signed(value)


def _is_in_points(result: ComparisonResult) -> bool:
    return result.of == TASKS or METRICS[result.metric or "accuracy"].higher_is_better


def describe_comparison(result: ComparisonResult) -> str:
    """`perplexity: gpt - lstm`."""
    metric = formats.metric_name(result.metric or "accuracy")
    of = formats.spoken(result.of)
    subject = of if of in (TASKS, metric) else f"{of}, {metric}"
    terms = sorted(result.terms.items(), key=lambda term: -term[1])  # positive terms first
    words = []
    for name, weight in terms:
        sign = "\N{MINUS SIGN} " if weight <= 0 else "+ " if words else ""
        times = "" if abs(weight) == 1 else f"{abs(weight):g} \N{MULTIPLICATION SIGN} "
        words.append(f"{sign}{times}{formats.spoken(name)}")
    return f"{subject}: {' '.join(words)}"
