"""Ladder stage: one self-contained HTML page about all rungs, its plots as PNG and tables as CSV.

    pretrain, measure of each rung ──> rungs.py: columns and blocks of the suites ──┐
    claims ──> claims.py                                                            ├──> sections
    evaluate, table ──> sections/                                                 ──┘

Everything comes from records and files of earlier stages; nothing is measured here. What a ladder
did not measure has no section. Published numbers are in separate columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.comparison.claims import ClaimsSummary, claim_rows
from rungwise.evaluation.suites.section import (
    Column,
    MeasuredRung,
    Panel,
    SuiteBlock,
    plot_estimate,
    plot_value,
)
from rungwise.report import formats, style
from rungwise.report.ladder import claims
from rungwise.report.ladder.advice import gather_questions, write_advice
from rungwise.report.ladder.claims import rank_rungs
from rungwise.report.ladder.forecast import gather_forecast, write_forecast
from rungwise.report.ladder.picture import draw_ladder, picture_columns
from rungwise.report.ladder.rungs import (
    gather_blocks,
    gather_columns,
    gather_rungs,
    gather_suites,
    history_rows,
    list_skipped_suites,
    score_rows,
)
from rungwise.report.page import Page, Section, write_page
from rungwise.report.palette import Series, series
from rungwise.report.sections import budgets, findings, origin, table, tuning
from rungwise.report.sections.names import (
    name_rungs,
    rename_claims,
    rename_comparison,
    rename_rungs,
)
from rungwise.report.sections.variants import gather_comparison
from rungwise.report.stage import LADDER_PAGE, LadderConfig, ReportSummary
from rungwise.tokenizer import TokenizerSummary

Looks = Mapping[str, Series]


def write_ladder(
    config: LadderConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ReportSummary:
    """Write the page, the plots, the tables and the recipe that rebuilds them.

    Inputs: every stage of the experiment by its title, and claims.
    """
    rungs, comparison = gather_rungs(inputs, config.measured), gather_comparison(inputs)
    names = name_rungs(rungs)
    rungs = rename_rungs(rungs, names)
    shown = [rung.name for rung in rungs]
    if comparison:
        comparison = rename_comparison(comparison, names)
        shown += [*comparison.variants, *comparison.rivals]
    looks = {name: series(place) for place, name in enumerate(dict.fromkeys(shown))}
    if comparison:
        comparison = replace(comparison, looks=looks)
    judged = rename_claims(ClaimsSummary.of(inputs["claims"]), names)
    answered = gather_suites(rungs)
    tasks = comparison.tasks if comparison else ()
    searches = tuning.gather_searches(inputs, looks, names)
    chosen = frozenset(each.rung for each in searches if each.summary.on_held_out)
    evaluations = [task.evaluation for task in tasks]
    columns = gather_columns(answered, judged.averages, evaluations, chosen)
    ranking = rank_rungs(rungs, columns, judged.averages)
    after = tuning.list_changed_verdicts(inputs, config.claims_after)
    ladder_table = table.write_table(inputs, comparison, names=names, is_ladder=True)
    tested = claims.select_tested(judged.claims)
    more = gather_forecast(inputs, names)
    claims_section = _write_claims(
        judged,
        after,
        tuning.list_untuned(searches, judged),
        claims.list_verdicts_at(inputs, config.claims_at),
        more.chances(judged.claims) if more else {},
    )
    questions = gather_questions(rungs, columns, comparison)
    recipe = origin.recipe_text(context.recipe)
    verdicts = claims.count_verdicts(judged.claims) if tested else ""
    page = Page(
        kind="ladder",
        file=LADDER_PAGE,
        workflow=origin.workflow(inputs),
        headline="; ".join(
            filter(
                None,
                (*map(findings.rival_headline, tasks), ranking and ranking.headline(), verdicts),
            )
        )
        or "no rung has a score",
        lede=([each.sentence() for each in questions] or ([ranking.sentence()] if ranking else []))
        + ([f"{verdicts[0].upper()}{verdicts[1:]}."] if verdicts else [])
        + [f"The task {task} is left out: {why}." for task, why in config.gaps.items()],
        budget=_describe_budget(inputs, rungs),
        sections=[
            write_advice(questions, looks),
            _write_picture(rungs, columns, looks),
            write_forecast(more, looks) if more else None,
            claims_section if tested else None,
            _write_history(rungs, columns, looks, ladder_table is not None),
            tuning.write_tuning(
                searches, names=[rung.name for rung in rungs], verdicts_after=after
            ),
            *(_write_suites(title, each, looks) for title, each in gather_blocks(answered).items()),
            ladder_table,
            budgets.write_budgets(comparison),
            budgets.write_mix(comparison),
            None if tested else claims_section,
            origin.write_origin(inputs, recipe),
        ],
    )
    return write_page(page, config.title, inputs, recipe, output)


def _write_picture(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], looks: Looks
) -> Section | None:
    shown = picture_columns(columns)
    plots = {
        "ladder": draw_ladder(rungs, shown, looks),
        "ladder-narrow": draw_ladder(rungs, shown, looks, narrow=True),
    }
    return Section("picture", "The ladder", {"learnt": shown}, plots) if plots["ladder"] else None


def _write_claims(
    judged: ClaimsSummary,
    after: Mapping[str, Mapping[str, str]],
    untuned: Mapping[str, Sequence[str]],
    verdicts_at: Mapping[str, Mapping[str, str]],
    chances: Mapping[str, float],
) -> Section:
    tested = claims.select_tested(judged.claims)
    once = any(claim.pretrainings == 1 for claim in judged.claims)
    fields = {
        "tested": tested,
        "untested": [each for each in judged.claims if each.verdict == "not tested"],
        "effects": claims,
        "luck": findings.describe_luck(judged.seeds) if judged.seeds and once else "",
        "verdicts_after": after,
        "untuned_in": untuned,
        "verdicts_at": verdicts_at,
        "chances": chances,
    }
    title = "What was found" if tested else "Claims"
    return Section("claims", title, fields, csv={"claims": claim_rows(judged.claims)})


def _write_history(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column], looks: Looks, has_table: bool
) -> Section:
    flops = {rung.name: rung.pretrain.flops for rung in rungs if rung.pretrain.flops}
    parameters = {rung.name: float(rung.pretrain.parameters) for rung in rungs}
    plots = {
        "operations": _draw_by_size(columns, "operations (FLOP)", flops, looks),
        "parameters": _draw_by_size(columns, "parameters", parameters, looks),
        "while_learning": _draw_learning_curves(rungs, looks),
    }
    fields = {
        "rungs": rungs,
        "columns": columns,
        "looks": looks,
        "reference": list(dict.fromkeys(name for each in columns for name in each.published)),
        "floors": list(dict.fromkeys(name for each in columns for name in each.floors)),
        "skipped": list_skipped_suites(rungs),
        "same_weights": {rung.name: rung.also for rung in rungs if rung.also},
        "has_table": has_table,
    }
    csv = {"ladder": list(history_rows(rungs, columns)), "suites": score_rows(rungs)}
    return Section("history", "All scores", fields, plots, csv)


def _write_suites(title: str, blocks: Sequence[SuiteBlock], looks: Looks) -> Section:
    plots = {
        f"suite-{block.suite}": style.draw_panels(block.panels, looks)
        for block in blocks
        if block.panels
    }
    csv = {f"{block.suite}-{name}": rows for block in blocks for name, rows in block.csv.items()}
    fields = {"blocks": blocks, "looks": looks}
    return Section("suites", title, fields, plots, csv, titled=True)


def _draw_by_size(
    columns: Sequence[Column], axis: str, sizes: Mapping[str, float], looks: Looks
) -> bytes | None:
    """One panel per score, rungs by a size; None if no rung has the size."""
    panels = []
    for column in columns:
        # Perplexity is bits per byte in another unit.
        cells = {name: cell for name, cell in column.cells.items() if name in sizes}
        if column.metric == "perplexity" or not cells:
            continue
        factor = formats.scale(column.metric)
        lines = {
            name: [plot_estimate(sizes[name], cell.value, factor)] for name, cell in cells.items()
        }
        hollow = frozenset(name for name, cell in cells.items() if not cell.exact)
        unit = formats.metric_axis(column.metric, "")
        panels.append(Panel(column.name, axis, unit, lines, is_size=True, hollow=hollow))
    return style.draw_panels(panels, looks) if panels else None


def _draw_learning_curves(rungs: Sequence[MeasuredRung], looks: Looks) -> bytes | None:
    """Bits per byte of held-out text at each validation, by tokens read and by operations; None if
    fewer than two rungs have such a curve."""
    curves = [
        (rung.name, run.flops_per_token, rows)
        for rung in rungs
        if (run := rung.pretrain.gradient) is not None
        and (rows := [r for r in run.validation if r["tokens"] and "bits_per_byte" in r])
    ]
    if len(curves) < 2:
        return None
    panels = []
    for unit in ("tokens", "operations"):
        lines = {
            name: [
                plot_value(
                    row["tokens"] * (flops if unit == "operations" else 1), row["bits_per_byte"]
                )
                for row in rows
            ]
            for name, flops, rows in curves
        }
        axis = formats.metric_axis("bits_per_byte", "")
        panels.append(Panel(f"at equal {unit}", unit, axis, lines, is_size=True))
    return style.draw_panels(panels, looks, columns=2)


def _describe_budget(inputs: Mapping[str, Artifact], rungs: Sequence[MeasuredRung]) -> str:
    """The size at which everything on the page holds: corpus and training budget, in one line."""
    corpus = CorpusSummary.of(inputs["corpus"])
    counts = sorted({rung.pretrain.tokens for rung in rungs})
    vocab_size = TokenizerSummary.of(inputs["tokenizer"]).vocab_size
    tokens = " to ".join(dict.fromkeys(map(formats.compact, (counts[0], counts[-1]))))
    seconds = sum(artifact.record["seconds"] for artifact in inputs.values())
    return (
        f"All of this holds at this size: {formats.number(corpus.documents.train)} documents "
        f"({corpus.amount(formats.compact)}) for training, "
        f"{formats.number(corpus.documents.validation)} held out; vocabulary "
        f"{formats.number(vocab_size)}; {len(rungs)} rungs, {tokens} tokens each; "
        f"{formats.duration(seconds)} in all stages together."
    )
